/**
 * Prompt mutations by a policy that learns them, step by step: select, look at the result, store the experience,
 * update. Every caller trains a policy of its own; what serves others changes by a release alone.
 */
import type { Call } from "./connection.js";
import { EtudeClient, type ClientOptions } from "./client.js";
import { NotFound } from "./errors.js";
import { wrong } from "./offer.js";
import type { RunningServer } from "./platform/platform.js";
import { promptReward } from "./prompt-reward.js";
import { platform } from "#platform";

/** What `POST /select_action` answers. */
export interface SelectedAction {
  /** Number of the mutation. */
  action: number;
  mutation: string;
  log_prob: number;
  /** Expected reward from here on. */
  value: number;
  /** Probability with which the mutation was selected. */
  propensity: number;
  /** Probability of each mutation, by name. */
  probabilities: Record<string, number>;
  /** The prompt that the mutation makes, if a prompt was given. */
  prompt?: string;
}

/** A mutation of a prompt; `prompt` is the prompt that it makes. */
export type SelectedMutation = SelectedAction & { prompt: string };

/** What is known of one step. Give the prompt, or its embedding. */
export interface TrainingExperience {
  prompt?: string;
  embedding?: readonly number[];
  action: number;
  reward: number;
  log_prob?: number;
  value?: number;
  /** Whether the episode is over. */
  done: boolean;
  next_embedding?: readonly number[];
}

/** What an update of the policy did. */
export interface UpdateResult {
  policy_loss: number;
  value_loss: number;
  entropy: number;
  approx_kl: number;
  clip_fraction: number;
  epochs: number;
  buffer_size: number;
}

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
    this.current = new EtudeClient(options);
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
    this.current = new EtudeClient({ ...this.options, url: this.running.url, apiKey: this.running.apiKey });
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
  async selectAction(embedding: readonly number[], options: { greedy?: boolean } & Call = {}): Promise<SelectedAction> {
    const { greedy = false, ...call } = options;
    return await this.client.post("/select_action", { embedding: numbers(embedding), greedy }, call);
  }

  /** A mutation for a prompt, and the prompt that it makes. */
  async selectMutation(prompt: string, options: { greedy?: boolean } & Call = {}): Promise<SelectedMutation> {
    return await this.client.selectMutation(prompt, options);
  }

  async storeExperience(step: TrainingExperience, call?: Call): Promise<{ stored: boolean; buffer_size: number }> {
    if (!Number.isFinite(step.reward)) throw wrong("reward", `reward is ${step.reward}: expected a finite number`);
    return await this.client.post("/store_experience", step, call);
  }

  /** Learn from what was stored; null while that is too little. */
  async update(call?: Call): Promise<UpdateResult | null> {
    const { updated, ...found } = await this.client.post<UpdateResult & { updated: boolean }>("/update", {}, call);
    return updated ? found : null;
  }

  /** Mutate one of the prompts up to so many times, each time what the last mutation made, and store what came out. */
  async trainEpisode(prompts: readonly string[], maxSteps = 5, call: Call = {}): Promise<Episode> {
    const before = prompts[Math.floor(this.random() * prompts.length)];
    if (before === undefined) throw wrong("prompts", "prompts is empty: expected at least one prompt");
    if (!(maxSteps >= 1)) throw wrong("maxSteps", `maxSteps is ${maxSteps}: expected 1 or more`);
    const reward = this.options.reward ?? promptReward;
    const episode: Episode = { reward: 0, steps: 0, mutations: [], before, after: before };
    for (let done = false; !done; ) {
      const prompt = episode.after;
      const { action, mutation, log_prob, value, prompt: next } = await this.selectMutation(prompt, call);
      const gained = await reward(prompt, next, mutation);
      done = ++episode.steps >= maxSteps || next === prompt;
      await this.storeExperience({ prompt, action, reward: gained, log_prob, value, done }, call);
      episode.mutations.push(mutation);
      episode.reward += gained;
      episode.after = next;
    }
    return episode;
  }

  /** Register the policy that was trained; its version. */
  async saveCheckpoint(name?: string, call?: Call): Promise<string> {
    return (await this.client.post<{ version: string }>("/save", name === undefined ? {} : { name }, call)).version;
  }

  /** Continue from a version; false if there is no such version. */
  async loadCheckpoint(version: string, call?: Call): Promise<boolean> {
    try {
      return (await this.client.post<{ loaded: boolean }>("/load", { version }, call)).loaded;
    } catch (error) {
      if (error instanceof NotFound) return false;
      throw error;
    }
  }

  /** Probability of each mutation for a prompt or its embedding, by name. */
  async getDistribution(of: string | readonly number[], call?: Call): Promise<Record<string, number>> {
    const asked = typeof of === "string" ? { prompt: of } : { embedding: numbers(of) };
    return (await this.client.post<{ probabilities: Record<string, number> }>("/get_distribution", asked, call)).probabilities;
  }
}

function numbers(embedding: readonly number[]): readonly number[] {
  const place = embedding.findIndex((one) => !Number.isFinite(one));
  if (place >= 0) throw wrong(`embedding[${place}]`, `it is ${embedding[place]}: expected a finite number`);
  return embedding;
}
