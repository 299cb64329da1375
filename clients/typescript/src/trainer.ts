/** Training of a prompt policy, episode by episode, by a server. */
import type { Call } from "./connection.js";
import { wrong } from "./offer.js";
import { type Episode, RLInterface, type RLOptions, type UpdateResult } from "./rl.js";

export interface TrainOptions extends Call {
  /** 100 */
  numEpisodes?: number;
  /** Mutations per episode, at most. 5 */
  episodeLength?: number;
  /** Episodes between two updates of the policy. 10 */
  updateInterval?: number;
  /** Called after each episode. */
  onProgress?: (progress: TrainingProgress) => void;
}

export interface TrainingProgress {
  episode: number;
  numEpisodes: number;
  /** What happened in this episode. */
  last: Episode;
  /** Mean reward of the last `updateInterval` episodes. */
  avgReward: number;
  /** Result of the update after this episode, if there was one. */
  update: UpdateResult | null;
}

export interface TrainingStats {
  /** Mean reward per episode over the last `updateInterval` episodes: what the policy reaches now. */
  avgReward: number;
  /** The same over the first ones: where it began. */
  firstReward: number;
  /** Reward of each episode. */
  rewards: number[];
  episodes: number;
  steps: number;
  /** Number of updates, and the last one. */
  updates: number;
  lastUpdate: UpdateResult | null;
}

export class RLTrainer {
  readonly interface: RLInterface;

  constructor(options: RLOptions = {}) {
    this.interface = new RLInterface(options);
  }

  /** Start a server of one's own. Not needed for a server that runs. */
  async start(): Promise<void> {
    await this.interface.startServer();
  }

  async stop(): Promise<void> {
    await this.interface.stopServer();
  }

  /** Train on prompts. An aborted signal ends it; what was learned until then stays on the server. */
  async train(prompts: readonly string[], options?: TrainOptions): Promise<TrainingStats>;
  async train(prompts: readonly string[], numEpisodes?: number, episodeLength?: number, updateInterval?: number): Promise<TrainingStats>;
  async train(prompts: readonly string[], given: TrainOptions | number = {}, ...more: number[]): Promise<TrainingStats> {
    const options = typeof given === "number" ? { numEpisodes: given } : given;
    const { numEpisodes = 100, episodeLength = more[0] ?? 5, updateInterval = more[1] ?? 10, onProgress, ...call }: TrainOptions = options;
    for (const [name, value] of Object.entries({ numEpisodes, episodeLength, updateInterval })) {
      if (!(Number.isInteger(value) && value >= 1)) throw wrong(name, `${name} is ${value}: expected a whole number from 1`);
    }
    const stats: TrainingStats = { avgReward: 0, firstReward: 0, rewards: [], episodes: 0, steps: 0, updates: 0, lastUpdate: null };
    while (stats.episodes < numEpisodes) {
      const last = await this.interface.trainEpisode(prompts, episodeLength, call);
      const isDue = ++stats.episodes % updateInterval === 0 || stats.episodes === numEpisodes;
      const update = isDue ? await this.interface.update(call) : null;
      stats.steps += last.steps;
      stats.rewards.push(last.reward);
      stats.avgReward = mean(stats.rewards.slice(-updateInterval));
      stats.firstReward = mean(stats.rewards.slice(0, updateInterval));
      stats.updates += update ? 1 : 0;
      stats.lastUpdate = update ?? stats.lastUpdate;
      onProgress?.({ episode: stats.episodes, numEpisodes, last, avgReward: stats.avgReward, update });
    }
    return stats;
  }
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
