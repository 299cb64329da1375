import { ConfigError } from "../errors.js";
import type { Platform } from "./platform.js";

export const platform: Platform = {
  outboxFolder: null,
  environment: () => undefined,
  openStore() {
    throw new ConfigError("outbox names a folder, and a browser has none: leave it out");
  },
  async startServer() {
    throw new ConfigError("a browser cannot start a server: give the url of one that runs");
  },
};
