/** A small world of prompts: each has defects, and each of the five mutations mends one kind of defect. */

export const MUTATIONS = ["try-catch-style", "context-reduction", "expansion", "constraint-addition", "task-decomposition"] as const;
export type Mutation = (typeof MUTATIONS)[number];

/** What a mutation that mends a defect is worth, and what one that mends nothing costs. */
export const MENDED = 1;
export const USELESS = -0.25;

const TOPICS = ["invoices", "a login page", "our newsletter", "sales figures", "a travel plan", "unit tests", "an interview", "sensor data"];
const PLACES = ["for the web shop", "for new colleagues", "for the board", "in the mobile app", "for the summer campaign", "in the archive"];

type Text = (topic: string, place: string) => string;

/** How a prompt reads that has the defect which a mutation mends. The last text of each is held out from training. */
const DEFECTS: Record<Mutation, readonly Text[]> = {
  "try-catch-style": [
    (topic, place) => `Read the attached file about ${topic} ${place} and sum up its columns.`,
    (topic, place) => `Open the attached file on ${topic} ${place} and list every column.`,
    (topic, place) => `Load the attached table of ${topic} ${place} and count its columns.`,
  ],
  "context-reduction": [
    (topic, place) => `By the way, we moved offices last year and the coffee is better now. Anyway, write about ${topic} ${place}. As I said, the coffee is better.`,
    (topic, place) => `Last year we moved offices, anyway. Our coffee machine broke, by the way. Describe ${topic} ${place}, as I said.`,
    (topic, place) => `Anyway, as I said last year, by the way, the offices are nice. Summarise ${topic} ${place}.`,
  ],
  expansion: [(topic) => `Fix ${topic}.`, (topic) => `Improve ${topic}.`, (topic) => `Do ${topic}.`],
  "constraint-addition": [
    (topic, place) => `Write as much as you like about ${topic} ${place}, in any style and any format.`,
    (topic, place) => `Tell me anything about ${topic} ${place}, in any format you like.`,
    (topic, place) => `Give me any text you like on ${topic} ${place}, in any style.`,
  ],
  "task-decomposition": [
    (topic, place) => `Collect ${topic} ${place}, then compare them, then draft a report, and finally plan the next steps.`,
    (topic, place) => `First gather ${topic} ${place}, then rank them, then write a summary, and finally send a plan.`,
    (topic, place) => `Find ${topic} ${place}, then sort them, then explain them, and finally draft the plan.`,
  ],
};

const MENDING: Record<Mutation, (text: string) => string> = {
  "try-catch-style": (text) => `${text}\nIf something is missing, say what, and stop.`,
  "context-reduction": (text) => text.split(/(?<=\.)\s+/).filter((one) => !/coffee|offices/.test(one)).join(" ") || text,
  expansion: (text) => `${text}\nSay what you changed and why, with one example.`,
  "constraint-addition": (text) => `${text}\nAt most 200 words, as plain text.`,
  "task-decomposition": (text) => `${text}\nWork in numbered steps, one at a time.`,
};

/** A world with its own random numbers. */
export class PromptWorld {
  private readonly defects = new Map<string, ReadonlySet<Mutation>>();

  constructor(private readonly random: () => number) {}

  /** A prompt with one or two defects; of the held-out texts if it is to be one. */
  prompt(isHeldOut = false): string {
    const first = this.pick(MUTATIONS);
    const second = this.pick(MUTATIONS);
    const wanted = new Set<Mutation>(this.random() < 0.7 || first === "expansion" || second === "expansion" ? [first] : [first, second]);
    const text = [...wanted].map((defect) => this.text(defect, isHeldOut)).join(" ");
    this.defects.set(text, wanted);
    return text;
  }

  /** The prompt that a mutation makes, and its reward. */
  step(prompt: string, mutation: Mutation): { prompt: string; reward: number } {
    const before = this.defects.get(prompt) ?? new Set<Mutation>();
    const next = MENDING[mutation](prompt);
    this.defects.set(next, new Set([...before].filter((one) => one !== mutation)));
    return { prompt: next, reward: before.has(mutation) ? MENDED : USELESS };
  }

  private text(defect: Mutation, isHeldOut: boolean): string {
    const texts = DEFECTS[defect];
    const text = isHeldOut ? (texts.at(-1) as Text) : this.pick(texts.slice(0, -1));
    return text(this.pick(TOPICS), this.pick(PLACES));
  }

  private pick<T>(from: readonly T[]): T {
    return from[Math.floor(this.random() * from.length)] as T;
  }
}

/** Random numbers that are the same for the same seed (mulberry32). */
export function seeded(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}
