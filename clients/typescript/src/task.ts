/** A task of an agent: its decisions, its turns and its outcome, sent as a whole when it is over. */
import type { Expected, LoggedDecision, Outcome, Preferences, Rating, Trajectory, Turn } from "./api.js";
import type { Decided, Deciding } from "./deciding.js";
import { Offer, type Option, optionName } from "./offer.js";
import { newId, snapshot } from "./values.js";

/** What is known of a task from its start. */
export interface TaskOptions {
  /** User that the task is done for: an id that has no meaning elsewhere. */
  user?: string;
  /** Group of the user, for comparison between groups. */
  group?: string;
  /** Name of the agent. */
  agent?: string;
  /** Model that the agent uses, with its version. */
  model?: string;
  /** Conversation that the task belongs to: a release may keep all of it on one policy. */
  conversation?: string;
  /** Any other names and values. */
  metadata?: Record<string, unknown>;
  /** Id of the task; made here without it. */
  id?: string;
}

/** A choice: the options, and what is wanted this time. */
export interface ChoiceOptions<T extends Option> extends Preferences {
  options: readonly T[];
  /** Option, or its name, if the policy does not answer in time; without it the first that may be chosen. */
  default?: T | string;
  /** Milliseconds to wait, in place of the client's `decideTimeoutMs`. */
  timeoutMs?: number;
  /** Whether the answer says what is expected of each option. */
  explain?: boolean;
  signal?: AbortSignal;
}

/** The chosen option, and how it was chosen. */
export interface Chosen<T> {
  /** As it was offered. */
  option: T;
  name: string;
  /** Probability with which it was chosen; null where it is unknown. */
  propensity: number | null;
  /** Version of the policy that chose; `default` if none did. */
  policy: string;
  /** Why the policy did not choose: loading, missing, slow, broken, away, refused …; null if it did. */
  fallback: string | null;
  /** What is expected of each option, by name, if `explain` asks for it. */
  expected: Record<string, Expected> | null;
}

/** What is known of the outcome. */
export type KnownOutcome = Partial<Pick<Outcome, "success" | "cost_usd" | "quality" | "subtasks" | "subtasks_done" | "error">>;

/** What a task needs of its client. */
export interface TaskHost {
  deciding: Deciding;
  /** Keep a finished task until it is sent; whether it is kept. */
  keep(task: Trajectory): Promise<boolean>;
}

const CHOICE = "choice:";

export class Task {
  /** Id of the task, for `etude.feedback`, from any process with a key that may decide. */
  readonly id: string;
  /** Id that only this installation could make, for a page to rate the task; null until a decision was answered. */
  signedId: string | null = null;
  /** Whether the finished task is kept, to be sent; null until it is over. */
  collected: boolean | null = null;
  private readonly began = performance.now();
  private readonly time = new Date().toISOString();
  private readonly decisions: LoggedDecision[] = [];
  private readonly turns: Turn[] = [];
  private readonly ratings: Rating[] = [];
  private known: Outcome = {};

  constructor(
    private readonly host: TaskHost,
    private readonly text: string,
    private readonly options: TaskOptions,
  ) {
    this.id = options.id ?? newId("t");
  }

  /** Choose an option. If the server is slow or away, it is the default; a request that is wrong throws. */
  async decide<const T extends Option>(name: string, context: unknown, choice: ChoiceOptions<T>): Promise<Chosen<T>> {
    const { options, default: usual, timeoutMs, explain, signal, ...preferences } = choice;
    const offer = new Offer<T>(options, preferences, usual);
    const problem = name.startsWith(CHOICE) ? name : CHOICE + name;
    const asked = {
      ...this.about(),
      problem,
      context: snapshot(context),
      options: options.map(snapshot),
      default: offer.usual,
      preferences,
      explain: explain ?? false,
    };
    const given = await this.host.deciding.choose(asked, offer, { timeoutMs, signal });
    return this.taken(given, offer);
  }

  /** Ask the policy of a problem, such as `workflow`. There is no default: it throws if no decision is to be had. */
  async ask(problem: string, context: unknown, more: { state?: unknown; signal?: AbortSignal } = {}): Promise<Decided> {
    const asked = { ...this.about(), problem, context: snapshot(context), state: snapshot(more.state) };
    const given = await this.host.deciding.ask(asked, more.signal);
    this.decisions.push(...given.logged);
    this.signedId = given.id;
    return given;
  }

  /** Log a decision that was made elsewhere. */
  decided(name: string, action: unknown, how: { policy: string; propensity?: number; options?: readonly Option[]; context?: unknown }): void {
    this.decisions.push({
      problem: name.startsWith(CHOICE) || how.options === undefined ? name : CHOICE + name,
      at_ms: this.ms(),
      context: snapshot(how.context),
      eligible: snapshot(how.options),
      action: how.options === undefined ? snapshot(action) : optionName(action),
      propensity: how.propensity ?? null,
      policy: how.policy,
    });
  }

  /** Record what the agent saw and did, and the result: any values, stored as JSON. */
  turn(turn: Omit<Turn, "at_ms" | "error"> & { error?: unknown }): void {
    const { error, ...values } = turn;
    const text = error === undefined || error === null ? {} : { error: String(snapshot(error)) };
    this.turns.push({ ...(snapshot(values) as Turn), ...text, at_ms: this.ms() });
  }

  /** Set the outcome, as far as it is known. A task that ends without an error succeeded, unless this says otherwise. */
  outcome(known: KnownOutcome): void {
    Object.assign(this.known, snapshot(known));
  }

  /** Add a rating before the task is over. */
  feedback(rating: Rating): void {
    this.ratings.push(snapshot(rating) as Rating);
  }

  /** The task is over: it is kept, and sent. An `error` is its outcome, unless the outcome is known. */
  async end(error?: unknown): Promise<boolean> {
    this.collected ??= await this.host.keep(this.trajectory(error));
    return this.collected;
  }

  private taken<T extends Option>(given: Decided, offer: Offer<T>): Chosen<T> {
    this.decisions.push(...given.logged);
    if (given.id !== null) this.signedId = given.id;
    return {
      option: offer.named(given.action) as T,
      name: optionName(given.action),
      propensity: given.propensity,
      policy: given.policy,
      fallback: given.fallback ?? null,
      expected: given.expected ?? null,
    };
  }

  /** What the server records of the task with each decision, in case this process ends before the task. */
  private about() {
    const { user, group, agent, model, conversation } = this.options;
    const task = snapshot(this.text) as string;
    return { task, user, group, agent, model, conversation, trajectory: this.id, at_ms: this.ms(), log: true };
  }

  private trajectory(error: unknown): Trajectory {
    const { metadata, id: _, ...about } = this.options;
    const costs = this.turns.flatMap((turn) => turn.cost_usd ?? []);
    const isCancelled = (error as { name?: unknown } | undefined)?.name === "AbortError";
    const ended: Outcome =
      error === undefined ? { success: true } : { success: isCancelled ? null : false, ended: isCancelled ? "cancelled" : "failed" };
    const cost: Outcome = costs.length ? { cost_usd: costs.reduce((sum, one) => sum + one, 0) } : {};
    const why: Outcome = error === undefined ? {} : { error: String(snapshot(error)) };
    const first = this.decisions[0];
    const { conversation, ...named } = about;
    return {
      type: "agent.rl.trajectory.v1",
      id: this.id,
      time: this.time,
      task: snapshot(this.text) as string,
      problem: first?.problem ?? "task",
      policy: this.decisions.at(-1)?.policy ?? null,
      ...named,
      decisions: this.decisions,
      turns: this.turns,
      outcome: { ...ended, ...cost, ...why, latency_ms: this.ms(), ...this.known },
      feedback: this.ratings,
      metadata: metadata ? (snapshot(metadata) as Record<string, unknown>) : null,
    };
  }

  private ms(): number {
    return performance.now() - this.began;
  }
}
