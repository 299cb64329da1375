/** What is to be stored on the server, until it is: in order, also after the server was away, and nothing twice. */
import type { FeedbackStored } from "./api.js";
import type { Connection } from "./connection.js";
import { Refused, RateLimited, ServerFailed, Unauthorized } from "./errors.js";

/** A finished task, or what is reported of one. */
export interface Entry {
  /** Unique: the server stores what has this id once. */
  id: string;
  path: "/v1/trajectories" | "/v1/feedback";
  body: unknown;
}

export interface Waiting {
  /** Where it is in the store; names sort by time. */
  name: string;
  entry: Entry;
}

/** What the server will never accept, and why. */
export interface RefusedEntry extends Waiting {
  reason: string;
}

/** Where entries wait. */
export interface Store {
  /** Durable when it resolves, as far as the store is. */
  add(entry: Entry): Promise<string>;
  /** The oldest first. */
  list(limit: number): Promise<Waiting[]>;
  remove(name: string): Promise<void>;
  /** Keep it where it is not sent. */
  refuse(name: string, reason: string): Promise<void>;
  refused(): Promise<RefusedEntry[]>;
  /** Remove what was refused. */
  discard(name: string): Promise<void>;
  /** Send again what was refused. */
  restore(name: string): Promise<void>;
  /** The right to send, which one process has at a time; null while another has it. */
  lock(): Promise<(() => Promise<void>) | null>;
}

/** What the first try to send an entry gave. */
export type FirstTry =
  | { state: "sent"; answer: FeedbackStored | null }
  | { state: "refused"; error: Refused }
  | { state: "waiting"; error: unknown };

const BATCH = 100;
const BATCH_CHARS = 1 << 20;
const FIRST_PAUSE_MS = 1_000;
const MAX_PAUSE_MS = 30_000;
const MAX_IN_MEMORY = 1_000;

export class Outbox {
  private passing: Promise<void> | null = null;
  private isAgain = false;
  private failures = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly tries = new Map<string, (first: FirstTry) => void>();
  private readonly closing = new AbortController();

  constructor(
    private readonly store: Store,
    private readonly connection: Connection,
    private readonly log: (message: string) => void,
  ) {}

  /** Keep an entry, and begin to send it. Resolves when it is kept. */
  async add(entry: Entry): Promise<void> {
    await this.store.add(entry);
    this.begin();
  }

  /** Keep an entry, and try once to send it. What is refused is not kept: the caller knows of it. */
  async deliver(entry: Entry): Promise<FirstTry> {
    const name = await this.store.add(entry);
    const first = new Promise<FirstTry>((resolve) => this.tries.set(name, resolve));
    this.begin();
    return await first;
  }

  /** Try to send everything now. Resolves with the number of entries that still wait. */
  async flush(): Promise<number> {
    this.begin();
    while (this.passing) await this.passing;
    return (await this.store.list(Infinity)).length;
  }

  /** What waits to be sent, the oldest first. */
  async waiting(): Promise<Entry[]> {
    return (await this.store.list(Infinity)).map((one) => one.entry);
  }

  /** What the server refused for good, with its reason. It is kept until it is restored or removed. */
  async refused(): Promise<RefusedEntry[]> {
    return await this.store.refused();
  }

  /** Remove what was refused. */
  async discard(name: string): Promise<void> {
    await this.store.discard(name);
  }

  /** Send again what was refused, such as with a key that was not the right one. */
  async retryRefused(): Promise<void> {
    for (const { name } of await this.store.refused()) await this.store.restore(name);
    this.begin();
  }

  /** Try once more to send what waits, for at most so long, then stop; what is left waits in its folder. */
  async close(timeoutMs: number): Promise<void> {
    const over = setTimeout(() => this.closing.abort(), timeoutMs);
    if (timeoutMs > 0) await this.flush();
    clearTimeout(over);
    clearTimeout(this.timer);
    this.closing.abort();
    await this.passing; // so that others may send what is left
  }

  /** Start a pass, or have the one that runs look again. */
  private begin(): void {
    this.isAgain = true;
    this.passing ??= this.passes().finally(() => (this.passing = null));
  }

  private async passes(): Promise<void> {
    while (this.isAgain && !this.closing.signal.aborted) {
      this.isAgain = false;
      try {
        await this.pass();
        this.failures = 0;
      } catch (error) {
        this.later(error);
      }
    }
  }

  private async pass(): Promise<void> {
    const unlock = await this.store.lock();
    if (unlock === null) return this.later(null); // another process is sending
    try {
      for (let found = await this.store.list(BATCH); found.length; found = await this.store.list(BATCH)) {
        for (const group of groups(found)) await this.send(group);
      }
    } finally {
      await unlock();
    }
  }

  /** Send entries that go together; of a group that is refused, each by itself. */
  private async send(group: Waiting[]): Promise<void> {
    let answer: unknown;
    try {
      answer = await this.post(group);
    } catch (error) {
      if (!isFinal(error)) throw error;
      if (group.length > 1) {
        for (const one of group) await this.send([one]);
        return;
      }
      const [one] = group as [Waiting];
      if (this.tries.has(one.name)) {
        await this.store.remove(one.name);
        this.settle(one.name, { state: "refused", error });
      } else {
        await this.store.refuse(one.name, error.message);
        this.log(`etude: the server refused ${one.entry.id}, which is kept: ${error.message}`);
      }
      return;
    }
    for (const { name } of group) await this.store.remove(name);
    for (const { name, entry } of group) {
      this.settle(name, { state: "sent", answer: entry.path === "/v1/feedback" ? (answer as FeedbackStored) : null });
    }
  }

  private async post(group: Waiting[]): Promise<unknown> {
    const [{ entry }] = group as [Waiting];
    const { signal } = this.closing;
    const asked = { idempotencyKey: entry.id, retries: 1, signal, keepalive: JSON.stringify(entry.body).length < 10_000 };
    if (entry.path === "/v1/feedback") return await this.connection.ask("POST", entry.path, { ...asked, body: entry.body });
    const body = { trajectories: group.map((one) => one.entry.body) }; // each is stored once, by its id
    return await this.connection.ask("POST", entry.path, { retries: 1, signal, repeatable: true, body });
  }

  private settle(name: string, first: FirstTry): void {
    this.tries.get(name)?.(first);
    this.tries.delete(name);
  }

  /** The server is away, or somebody else is sending: everything waits, and is tried again. */
  private later(error: unknown): void {
    if (this.failures === 0 && error !== null && !this.closing.signal.aborted) this.log(`etude: not sent, and kept until it is: ${messageOf(error)}`);
    for (const name of [...this.tries.keys()]) this.settle(name, { state: "waiting", error });
    const pauseMs = Math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS * 2 ** Math.min(this.failures++, 10));
    clearTimeout(this.timer);
    if (this.closing.signal.aborted) return;
    this.timer = setTimeout(() => this.begin(), pauseMs * (0.5 + Math.random() / 2));
    this.timer.unref?.(); // what waits in a folder does not keep a process alive
  }
}

/** Finished tasks that follow each other, as many as one request may have; each report by itself. */
function* groups(found: readonly Waiting[]): Generator<Waiting[]> {
  let group: Waiting[] = [];
  let chars = 0;
  for (const one of found) {
    const size = JSON.stringify(one.entry.body).length;
    const isTask = one.entry.path === "/v1/trajectories";
    if (group.length && (!isTask || chars + size > BATCH_CHARS)) {
      yield group;
      [group, chars] = [[], 0];
    }
    group.push(one);
    chars += size;
    if (!isTask) {
      yield group;
      [group, chars] = [[], 0];
    }
  }
  if (group.length) yield group;
}

/** Whether the server will never accept it; a key can be corrected, and so can a server. */
function isFinal(error: unknown): error is Refused {
  return error instanceof Refused && !(error instanceof Unauthorized || error instanceof RateLimited || error instanceof ServerFailed);
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Entries in memory: they wait as long as the page or the process lives. */
export class MemoryStore implements Store {
  private readonly entries = new Map<string, Entry>();
  private readonly kept = new Map<string, RefusedEntry>();
  private count = 0;

  constructor(private readonly log: (message: string) => void) {}

  async add(entry: Entry): Promise<string> {
    const [oldest] = this.entries.keys();
    if (oldest !== undefined && this.entries.size >= MAX_IN_MEMORY) {
      this.entries.delete(oldest);
      this.log(`etude: ${MAX_IN_MEMORY} entries wait for the server, so the oldest one is dropped`);
    }
    const name = `${this.count++}`.padStart(12, "0");
    this.entries.set(name, entry);
    return name;
  }

  async list(limit: number): Promise<Waiting[]> {
    return [...this.entries].slice(0, limit).map(([name, entry]) => ({ name, entry }));
  }

  async remove(name: string): Promise<void> {
    this.entries.delete(name);
  }

  async discard(name: string): Promise<void> {
    this.kept.delete(name);
  }

  async refuse(name: string, reason: string): Promise<void> {
    const entry = this.entries.get(name);
    this.entries.delete(name);
    if (entry) this.kept.set(name, { name, entry, reason });
  }

  async refused(): Promise<RefusedEntry[]> {
    return [...this.kept.values()];
  }

  async restore(name: string): Promise<void> {
    const found = this.kept.get(name);
    if (found && this.kept.delete(name)) this.entries.set(name, found.entry);
  }

  async lock(): Promise<() => Promise<void>> {
    return async () => undefined;
  }
}
