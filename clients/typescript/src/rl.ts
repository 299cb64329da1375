/**
 * Prompt mutations by a policy that learns them, step by step: select, look at the result, store the experience,
 * update. Every caller trains a policy of its own; what serves others changes by a release alone.
 */
import type { ExperienceStored, Selected, SessionStep, Updated } from "./api.js";
import type { Call } from "./connection.js";
import { EtudeClient, SESSION_TIMEOUT_MS, type ClientOptions } from "./client.js";
import { BadRequest, NotFound } from "./errors.js";
import { wrong } from "./offer.js";
import type { RunningServer } from "./platform/platform.js";
import { promptReward } from "./prompt-reward.js";
import { platform } from "#platform";

/** A mutation, and how it was chosen: what `POST /select_action` answers. */
export type SelectedAction = Selected;

/** A mutation of a prompt; `prompt` is the prompt that it makes. */
export type SelectedMutation = SelectedAction & { prompt: string };

/** What is known of one step. Give the prompt, or its embedding. */
export type TrainingExperience = SessionStep;

/** What an update of the policy did. */
export type UpdateResult = { [K in keyof Omit<Updated, "updated">]-?: number };

export interface Episode {
  /** Sum of the rewards. */
  reward: number;
  steps: number;
  mutations: string[];
  /** The prompt that the episode began with, and the one that it ended with. */
  before: string;
  after: string;
}

/** How much better a prompt became: the number that the policy learns to raise. */
export type PromptReward = (before: string, after: string, mutation: string) => number | Promise<number>;

export interface RLOptions extends ClientOptions {
  /** Port of `startServer`; 0 is any free one. 8765 */
  port?: number;
  /** Folder in which `startServer` runs the server. */
  folder?: string;
  /** Command that runs Etude. `["etude"]` */
  command?: readonly string[];
  /** Milliseconds until a started server has to be ready. 60,000 */
  startTimeoutMs?: number;
  /** Reward of a mutation; without it, rough rules (`promptReward`). */
  reward?: PromptReward;
  /** Gives numbers from 0 to 1. */
  random?: () => number;
}

export class RLInterface {
  private running: RunningServer | undefined;
  private current: EtudeClient;
  protected readonly random: () => number;

  constructor(private readonly options: RLOptions = {}) {
    this.current = new EtudeClient({ timeoutMs: SESSION_TIMEOUT_MS, ...options });
    this.random = options.random ?? Math.random;
  }

  /** The client of the server that is used. */
  get client(): EtudeClient {
    return this.current;
  }

  /** Process id of the started server. */
  get pid(): number | undefined {
    return this.running?.pid;
  }

  /** Start a server of one's own, and wait until it is ready. In Node alone. */
  async startServer(): Promise<void> {
    if (this.running) return;
    const { command = ["etude"], port = 8765, folder, startTimeoutMs = 60_000, apiKey } = this.options;
    this.running = await platform.startServer({ command, port, folder, startTimeoutMs, apiKey });
    this.current = new EtudeClient({ timeoutMs: SESSION_TIMEOUT_MS, ...this.options, url: this.running.url, apiKey: this.running.apiKey });
  }

  /** Stop the server that was started. */
  async stopServer(): Promise<void> {
    const running = this.running;
    this.running = undefined;
    if (!running) return;
    await this.current.close();
    await running.stop();
  }

  /** A mutation for a prompt that is known by its embedding. */
  async selectAction(
    embedding: readonly number[],
    options: { greedy?: boolean } & Call = {},
  ): Promise<SelectedAction> {
    const { greedy = false, ...call } = options;
    return await this.client.call("POST /select_action", { body: { embedding: numbers(embedding), greedy } }, call);
  }

  /** A mutation for a prompt, and the prompt that it makes. */
  async selectMutation(prompt: string, options: { greedy?: boolean } & Call = {}): Promise<SelectedMutation> {
    return await this.client.selectMutation(prompt, options);
  }

  async storeExperience(step: TrainingExperience, call?: Call): Promise<ExperienceStored> {
    if (!Number.isFinite(step.reward)) throw wrong("reward", `reward is ${step.reward}: expected a finite number`);
    return await this.client.call("POST /store_experience", { body: step }, call);
  }

  /** Learn from what was stored; null while that is too little. */
  async update(call?: Call): Promise<UpdateResult | null> {
    const { updated, ...found } = await this.client.call("POST /update", { body: {} }, call);
    return updated ? (found as UpdateResult) : null;
  }

  /** Mutate one of the prompts up to so many times, each time what the last mutation made, and store what came out. */
  async trainEpisode(prompts: readonly string[], maxSteps = 5, call: Call = {}): Promise<Episode> {
    const before = prompts[Math.floor(this.random() * prompts.length)];
    if (before === undefined) throw wrong("prompts", "prompts is empty: expected at least one prompt");
    if (!(maxSteps >= 1)) throw wrong("maxSteps", `maxSteps is ${maxSteps}: expected 1 or more`);
    const reward = this.options.reward ?? promptReward;
    const episode: Episode = { reward: 0, steps: 0, mutations: [], before, after: before };
    for (let now = await this.selectable(before, call); now !== null;) {
      const prompt = episode.after;
      const gained = await reward(prompt, now.prompt, now.mutation);
      const isLast = ++episode.steps >= maxSteps || now.prompt === prompt;
      const next = isLast ? null : await this.selectable(now.prompt, call);
      const { action, log_prob, value } = now;
      await this.storeExperience({ prompt, action, reward: gained, log_prob, value, done: next === null }, call);
      episode.mutations.push(now.mutation);
      episode.reward += gained;
      episode.after = now.prompt;
      now = next;
    }
    return episode;
  }

  /** A mutation; null where none makes sense for the prompt. */
  private async selectable(prompt: string, call: Call): Promise<SelectedMutation | null> {
    try {
      return await this.selectMutation(prompt, call);
    } catch (error) {
      if (error instanceof BadRequest && error.detail.includes("every mutation is masked")) return null;
      throw error;
    }
  }

  /** Register the policy that was trained; its version. */
  async saveCheckpoint(name?: string, call?: Call): Promise<string> {
    return (await this.client.call("POST /save", { body: name === undefined ? {} : { name } }, call)).version;
  }

  /** Continue from a version; false if there is no such version. */
  async loadCheckpoint(version: string, call?: Call): Promise<boolean> {
    try {
      await this.client.call("POST /load", { body: { version } }, call);
      return true;
    } catch (error) {
      if (error instanceof NotFound) return false;
      throw error;
    }
  }

  /** Probability of each mutation for a prompt or its embedding, by name. */
  async getDistribution(of: string | readonly number[], call?: Call): Promise<Record<string, number>> {
    const asked = typeof of === "string" ? { prompt: of } : { embedding: numbers(of) };
    return (await this.client.call("POST /get_distribution", { body: asked }, call)).probabilities;
  }
}

function numbers(embedding: readonly number[]): number[] {
  const place = embedding.findIndex((one) => !Number.isFinite(one));
  if (place >= 0) throw wrong(`embedding[${place}]`, `it is ${embedding[place]}: expected a finite number`);
  return [...embedding];
}
