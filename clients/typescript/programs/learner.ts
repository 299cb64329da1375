/** A policy that learns: linear in the words of a prompt, by PPO's clipped objective (Schulman et al., 2017). */

export const DIM = 256;
const LEARNING_RATE = 0.6;
const CLIP = 0.2;
const ENTROPY = 0.01;
const EPOCHS = 4;

/** A text as numbers: its words, hashed, with length 1. */
export function embed(text: string): number[] {
  const found = new Array<number>(DIM).fill(0);
  for (const word of text.toLowerCase().match(/[a-z0-9]+/g) ?? []) {
    let hash = 2166136261;
    for (let i = 0; i < word.length; i++) hash = Math.imul(hash ^ word.charCodeAt(i), 16777619);
    const place = (hash >>> 1) % DIM;
    found[place] = (found[place] ?? 0) + (hash & 1 ? 1 : -1);
  }
  const length = Math.hypot(...found) || 1;
  return found.map((one) => one / length);
}

export interface Step {
  state: readonly number[];
  action: number;
  logProb: number;
  reward: number;
}

export interface Updated {
  policyLoss: number;
  valueLoss: number;
  entropy: number;
  approxKl: number;
  clipFraction: number;
}

export class Learner {
  private readonly weights: number[][];
  private readonly values = new Array<number>(DIM).fill(0);

  constructor(
    readonly actions: number,
    private readonly random: () => number,
  ) {
    this.weights = Array.from({ length: actions }, () => new Array<number>(DIM).fill(0));
  }

  probabilities(state: readonly number[]): number[] {
    const logits = this.weights.map((row) => dot(row, state));
    const most = Math.max(...logits);
    const raised = logits.map((one) => Math.exp(one - most));
    const sum = raised.reduce((a, b) => a + b, 0);
    return raised.map((one) => one / sum);
  }

  /** Expected reward of a step from here. */
  value(state: readonly number[]): number {
    return dot(this.values, state);
  }

  act(state: readonly number[], isGreedy: boolean): { action: number; logProb: number; probabilities: number[] } {
    const probabilities = this.probabilities(state);
    const action = isGreedy ? probabilities.indexOf(Math.max(...probabilities)) : this.sample(probabilities);
    return { action, logProb: Math.log(probabilities[action] as number), probabilities };
  }

  /** Learn from steps: each is worth its own reward, since a mutation mends at once or not at all. */
  update(steps: readonly Step[]): Updated {
    const advantages = steps.map((step) => step.reward - this.value(step.state));
    const found: Updated = { policyLoss: 0, valueLoss: 0, entropy: 0, approxKl: 0, clipFraction: 0 };
    for (let epoch = 0; epoch < EPOCHS; epoch++) {
      steps.forEach((step, i) => this.learn(step, advantages[i] as number, found, 1 / (EPOCHS * steps.length)));
    }
    return found;
  }

  /** One step of gradient ascent. */
  private learn({ state, action, logProb, reward }: Step, advantage: number, found: Updated, share: number): void {
    const probabilities = this.probabilities(state);
    const ratio = Math.exp(Math.log(probabilities[action] as number) - logProb);
    const isClipped = advantage > 0 ? ratio > 1 + CLIP : ratio < 1 - CLIP;
    const entropy = -probabilities.reduce((sum, p) => sum + p * Math.log(p), 0);
    probabilities.forEach((p, i) => {
      const ofPolicy = isClipped ? 0 : ratio * advantage * ((i === action ? 1 : 0) - p);
      const ofEntropy = -p * (Math.log(p) + entropy);
      add(this.weights[i] as number[], state, LEARNING_RATE * (ofPolicy + ENTROPY * ofEntropy));
    });
    const error = reward - this.value(state);
    add(this.values, state, LEARNING_RATE * 0.5 * error);
    found.policyLoss -= share * Math.min(ratio * advantage, Math.min(1 + CLIP, Math.max(1 - CLIP, ratio)) * advantage);
    found.valueLoss += share * error ** 2;
    found.entropy += share * entropy;
    found.approxKl += share * (ratio - 1 - Math.log(ratio));
    found.clipFraction += isClipped ? share : 0;
  }

  private sample(probabilities: readonly number[]): number {
    let left = this.random();
    const place = probabilities.findIndex((p) => (left -= p) < 0);
    return place < 0 ? probabilities.length - 1 : place;
  }

  /** Numbers that `restore` makes the same policy of. */
  snapshot(): { weights: number[][]; values: number[] } {
    return structuredClone({ weights: this.weights, values: this.values });
  }

  restore(saved: { weights: number[][]; values: number[] }): void {
    saved.weights.forEach((row, i) => this.weights[i]?.splice(0, DIM, ...row));
    this.values.splice(0, DIM, ...saved.values);
  }
}

function dot(a: readonly number[], b: readonly number[]): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += (a[i] as number) * (b[i] ?? 0);
  return sum;
}

function add(to: number[], what: readonly number[], times: number): void {
  for (let i = 0; i < to.length; i++) to[i] = (to[i] as number) + times * (what[i] ?? 0);
}
