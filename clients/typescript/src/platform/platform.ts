/** What differs between Node and browsers. */
import type { Store } from "../outbox.js";

export interface ServerOptions {
  /** Command that runs Etude. */
  command: readonly string[];
  /** Port to listen on; 0 is any free one. */
  port: number;
  /** Folder in which it runs, with its `etude.yaml` and `.etude`. */
  folder: string | undefined;
  /** Milliseconds until it has to be ready. */
  startTimeoutMs: number;
  /** API key that exists already; without one, a key is made, and revoked when the server stops. */
  apiKey: string | undefined;
}

/** A server that this process started. */
export interface RunningServer {
  readonly url: string;
  readonly apiKey: string;
  readonly pid: number;
  stop(): Promise<void>;
}

export interface Platform {
  /** Folder of the outbox; null where entries are in memory. */
  readonly outboxFolder: string | null;
  environment(name: string): string | undefined;
  openStore(folder: string): Store;
  startServer(options: ServerOptions): Promise<RunningServer>;
}
