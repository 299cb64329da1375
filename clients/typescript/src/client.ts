/** The client: decisions, tasks, ratings, and everything else that the server does, over HTTP. */
import type { DecisionAsked, DecisionGiven, FeedbackGiven, FeedbackStored, Routes, Trajectory } from "./api.js";
import { type Call, Connection, type Query } from "./connection.js";
import { Deciding } from "./deciding.js";
import { ConfigError, EtudeError } from "./errors.js";
import { type EtudeEvent, type EventsOptions, follow } from "./events.js";
import type { Option } from "./offer.js";
import { type Entry, MemoryStore, Outbox } from "./outbox.js";
import type { SelectedMutation } from "./rl.js";
import { Canary, Experiments, Jobs, Models } from "./resources.js";
import { type ChoiceOptions, type Chosen, type KnownOutcome, Task, type TaskOptions } from "./task.js";
import { newId, snapshot } from "./values.js";
import { platform } from "#platform";

export interface ClientOptions {
  /** Where `etude serve` is; in Node without it ETUDE_URL. A page may give a path of its own server, such as `/etude`. */
  url?: string | undefined;
  /** In Node without it ETUDE_API_KEY. Never in a page: let its server add the key. */
  apiKey?: string | undefined;
  /** Milliseconds for a call, retries included. 10,000 */
  timeoutMs?: number | undefined;
  /** Milliseconds that a choice of a task waits, before it gets its default. 200, and 1,200 for the first one */
  decideTimeoutMs?: number | undefined;
  /** Number of further tries of a call. 3 */
  retries?: number | undefined;
  /** In place of the global `fetch`. */
  fetch?: typeof globalThis.fetch | undefined;
  /** Folder of what waits to be sent, or `memory`. In Node `.etude/outbox-node-…`, one for each URL; in browsers memory. */
  outbox?: string | undefined;
  /** Where warnings go; without it, the console. */
  log?: ((message: string) => void) | undefined;
  /** Use a server of any version, at your own risk. */
  anyVersion?: boolean | undefined;
}

/** What to report: the outcome of a task, a rating of it, or both. */
export type Report = Omit<FeedbackGiven, "id" | "event" | "time">;

/** What was stored; `waiting` if nothing is stored yet, since the server is away. */
export type Reported = (FeedbackStored & { waiting: false }) | { waiting: true };

type Part<R extends keyof Routes, P extends string> = Routes[R] extends Record<P, infer T> ? { [K in P]: T } : unknown;
type MaybePart<R extends keyof Routes, P extends string> =
  Routes[R] extends Record<P, infer T> ? { [K in P]?: T } : unknown;
/** What a route takes, by where it is: `path`, `query`, `body`. */
export type Asking<R extends keyof Routes> = Part<R, "path"> & MaybePart<R, "query"> & Part<R, "body">;
export type Answer<R extends keyof Routes> = Routes[R]["answer"];
type Paged = {
  [R in keyof Routes]: Answer<R> extends { rows: unknown[]; next: string | null } ? R : never;
}[keyof Routes];
type Row<R extends Paged> = Answer<R> extends { rows: (infer T)[] } ? T : never;

/** Milliseconds for a call of a session: its first one loads the networks. */
export const SESSION_TIMEOUT_MS = 60_000;

export class EtudeClient {
  readonly url: string;
  /** What waits to be sent: finished tasks, outcomes and ratings. */
  readonly outbox: Outbox;
  readonly jobs = new Jobs(this);
  /** Policies: versions, their gates, approval and rollback. */
  readonly models = new Models(this);
  readonly canary = new Canary(this);
  readonly experiments = new Experiments(this);
  private readonly connection: Connection;
  private readonly deciding: Deciding;
  private readonly log: (message: string) => void;

  /** ConfigError if an option is wrong. Nothing connects before the first call. */
  constructor(options: ClientOptions = {}) {
    const { url = platform.environment("ETUDE_URL") ?? "http://127.0.0.1:8765" } = options;
    const {
      apiKey = platform.environment("ETUDE_API_KEY"),
      timeoutMs = 10_000,
      decideTimeoutMs = 200,
      retries = 3,
    } = options;
    for (const [name, value] of Object.entries({ timeoutMs, decideTimeoutMs, retries })) {
      if (!(value > 0 || (name === "retries" && value === 0)) || value > 2 ** 31 - 1) {
        throw new ConfigError(`${name} is ${value}: expected a positive number`);
      }
    }
    const fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
    this.log = options.log ?? ((message) => console.warn(message));
    this.connection = new Connection({
      url,
      apiKey,
      timeoutMs,
      retries,
      fetch,
      anyVersion: options.anyVersion ?? false,
    });
    this.url = this.connection.url;
    this.deciding = new Deciding(this.connection, decideTimeoutMs, this.log);
    const folder = options.outbox ?? (platform.outboxFolder && `${platform.outboxFolder}-${digits(this.url)}`); // of one server
    const store = folder === null || folder === "memory" ? new MemoryStore(this.log) : platform.openStore(folder);
    this.outbox = new Outbox(store, this.connection, this.log);
  }

  /** One decision, as `POST /v1/decisions` has it. It throws if there is none: a task's choices have a default. */
  async decide(asked: DecisionAsked, call: Call = {}): Promise<DecisionGiven> {
    return await this.call("POST /v1/decisions", { body: asked }, call);
  }

  /** Up to 100 decisions of tasks that have nothing to do with each other. One that is wrong refuses all. */
  async decideAll(asked: readonly DecisionAsked[], call: Call = {}): Promise<DecisionGiven[]> {
    return (await this.call("POST /v1/decisions/batch", { body: { decisions: [...asked] } }, call)).decisions;
  }

  /** A task: it is over when the function returns or throws, and is then stored as a whole, whatever happens to the server. */
  async task<T>(text: string, run: (task: Task) => T | Promise<T>): Promise<T>;
  async task<T>(text: string, options: TaskOptions, run: (task: Task) => T | Promise<T>): Promise<T>;
  async task<T>(text: string, ...more: [TaskOptions, (task: Task) => T] | [(task: Task) => T]): Promise<T> {
    const [options, run] = more.length === 2 ? more : [{}, more[0]];
    const task = this.openTask(text, options);
    let found: T;
    try {
      found = await run(task);
    } catch (error) {
      await task.end(error ?? new Error("an error without a value"));
      throw error;
    }
    await task.end();
    return found;
  }

  /** A task that ends with its `end()`: for agents whose tasks are not one function. */
  openTask(text: string, options: TaskOptions = {}): Task {
    return new Task({ deciding: this.deciding, keep: (made) => this.keep(made) }, text, options);
  }

  /** A task that is one choice. Its outcome is reported later by `task.outcome`, or never. */
  async choose<const T extends Option>(
    name: string,
    context: unknown,
    choice: ChoiceOptions<T> & TaskOptions,
  ): Promise<Chosen<T> & { task: OneChoice }> {
    const { user, group, agent, model, conversation, metadata, id, ...more } = choice;
    const about = { user, group, agent, model, conversation, metadata, id };
    const given = Object.fromEntries(Object.entries(about).filter(([, value]) => value !== undefined));
    const task = this.openTask(textIn(context), given);
    return { ...(await task.decide<T>(name, context, more as ChoiceOptions<T>)), task: new OneChoice(this, task) };
  }

  /**
   * Report the outcome of a task, or rate it, under the id of an answer, or of a task. It is kept before it is sent:
   * if the server is away, it is sent later. What the server refuses throws.
   */
  async feedback(id: string, report: Report, call: Pick<Call, "signal"> = {}): Promise<Reported> {
    const event = newId("f");
    const rates = report.thumbs != null || report.stars != null || report.comment != null;
    const about = rates ? { event, time: new Date().toISOString() } : {};
    const body = { ...(snapshot(report) as Report), ...about, id };
    const first = await unlessAborted(this.outbox.deliver({ id: event, path: "/v1/feedback", body }), call.signal);
    if (first.state === "refused") throw first.error;
    return first.state === "sent" ? { ...(first.answer as FeedbackStored), waiting: false } : { waiting: true };
  }

  /** What happens on the server, as it happens: jobs, steps of releases, notices. Needs a key with the role `release`. */
  events(options: EventsOptions = {}): AsyncGenerator<EtudeEvent, void, void> {
    return follow(this.connection, options);
  }

  /** A mutation for a prompt by the policy that learns them, and the prompt that it makes of it. */
  async selectMutation(prompt: string, options: { greedy?: boolean } & Call = {}): Promise<SelectedMutation> {
    const { greedy = false, ...call } = options;
    const given = await this.call("POST /select_action", { body: { prompt, greedy } }, { timeoutMs: SESSION_TIMEOUT_MS, ...call });
    return { ...given, prompt: given.prompt ?? prompt };
  }

  /** Any route, by its method and path, with the types of the API. */
  async call<R extends keyof Routes>(route: R, asking: Asking<R>, call: Call = {}): Promise<Answer<R>> {
    const [method, template] = route.split(" ") as ["GET" | "POST", string];
    const {
      path = {},
      query,
      body,
    } = asking as { path?: Record<string, string | number>; query?: Query; body?: unknown };
    const url = template.replace(/{(\w+)}/g, (_, name: string) => encodeURIComponent(String(path[name] ?? "")));
    if (method === "GET") return await this.connection.ask(method, url, { ...call, query });
    return await this.post(url, body, call, template === "/v1/decisions");
  }

  /** All rows of a list, page by page. */
  async *all<R extends Paged>(route: R, asking: Asking<R>, call: Call = {}): AsyncGenerator<Row<R>, void, void> {
    let cursor: string | null = null;
    do {
      const query: Query = { ...(asking as { query?: Query }).query, ...(cursor === null ? {} : { cursor }) };
      const page = (await this.call(route, { ...(asking as object), query } as Asking<R>, call)) as {
        rows: Row<R>[];
        next: string | null;
      };
      yield* page.rows;
      cursor = page.next;
    } while (cursor !== null);
  }

  /** A POST; all but single decisions, which are to be quick, have an idempotency key, so that retries do no harm. */
  async post<T>(path: string, body: unknown, call: Call = {}, isQuick = false): Promise<T> {
    const own = isQuick ? {} : { idempotencyKey: newId("i") };
    return await this.connection.ask<T>("POST", path, { ...own, ...call, body });
  }

  /** A GET. */
  async get<T>(path: string, call: Call = {}): Promise<T> {
    return await this.connection.ask<T>("GET", path, call);
  }

  /** Try to send what waits, for at most so long; the rest waits in its folder for the next process. */
  async close(timeoutMs = 2_000): Promise<void> {
    await this.outbox.close(timeoutMs);
  }

  private async keep(made: Trajectory): Promise<boolean> {
    try {
      const entry: Entry = { id: made.id, path: "/v1/trajectories", body: made };
      await this.outbox.add(entry);
      return true;
    } catch (error) {
      // The agent has done its work: it does not fail because its record could not be kept.
      this.log(
        `etude: the task ${made.id} is not stored: ${error instanceof Error ? error.message : String(error)}`,
      );
      return false;
    }
  }
}

/** The task of one choice. */
export class OneChoice {
  private isReported = false;

  constructor(
    private readonly client: EtudeClient,
    private readonly task: Task,
  ) {}

  get id(): string {
    return this.task.id;
  }

  get signedId(): string | null {
    return this.task.signedId;
  }

  /** Report what happened, once; then the task is sent. Whether it is kept. */
  async outcome(known: KnownOutcome): Promise<boolean> {
    if (this.isReported)
      throw new EtudeError(`the outcome of ${this.id} is reported already: rate it with feedback`);
    this.isReported = true;
    this.task.outcome({ success: null, ...known });
    return await this.task.end();
  }

  /** Rate it, now or later. */
  async feedback(rating: Pick<Report, "thumbs" | "stars" | "comment" | "user">): Promise<Reported> {
    return await this.client.feedback(this.signedId ?? this.id, rating);
  }
}

/** Digits that stand for a URL (FNV-1a). */
function digits(url: string): string {
  let hash = 2166136261;
  for (let i = 0; i < url.length; i++) hash = Math.imul(hash ^ url.charCodeAt(i), 16777619);
  return (hash >>> 0).toString(16).padStart(8, "0");
}

/** What a context says, as the description of a task. */
function textIn(context: unknown): string {
  if (typeof context === "string") return context;
  const found = context as Record<string, unknown> | null;
  const texts = ["text", "instruction", "task"].map((name) => found?.[name]);
  return texts.find((text): text is string => typeof text === "string") ?? "";
}

function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason);
    if (signal.aborted) return stop();
    signal.addEventListener("abort", stop, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}
