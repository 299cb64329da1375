import { FolderStore } from "./folder-store.js";
import type { Platform } from "./platform.js";
import { startServer } from "./server.js";

export const platform: Platform = {
  outboxFolder: ".etude/outbox-node",
  environment: (name) => process.env[name],
  openStore: (folder) => new FolderStore(folder),
  startServer,
};
