/** A policy learns which mutation mends which prompt: no server, no Python. */
import { Learner, type Step, embed } from "./learner.js";
import { bar, interval, progress } from "./table.js";
import { MENDED, MUTATIONS, type Mutation, PromptWorld, seeded } from "./world.js";

const EPISODES = 2000;
const PER_UPDATE = 50;
const JUDGED = 1000;

const random = seeded(Number(process.argv[2] ?? 1));
const world = new PromptWorld(random);
const learner = new Learner(MUTATIONS.length, random);

console.log(`${MUTATIONS.length} mutations, ${EPISODES} prompts with defects; a mutation that mends one is worth ${MENDED}.\n`);
let steps: Step[] = [];
let recent: number[] = [];
for (let episode = 1; episode <= EPISODES; episode++) {
  const prompt = world.prompt();
  const state = embed(prompt);
  const { action, logProb } = learner.act(state, false);
  const { reward } = world.step(prompt, MUTATIONS[action] as Mutation);
  steps.push({ state, action, logProb, reward });
  recent.push(reward);
  if (episode % PER_UPDATE === 0) {
    const { entropy } = learner.update(steps);
    const { mean } = interval(recent);
    progress(`prompt ${String(episode).padStart(4)}  reward ${mean.toFixed(2).padStart(5)} ${bar(mean)}  entropy ${entropy.toFixed(2)}`, episode === EPISODES, episode % 250 === 0);
    [steps, recent] = [[], []];
  }
}

/** Mean reward of a way to choose, on prompts of texts that were not trained on. */
function judged(choose: (prompt: string) => Mutation): { mean: number; half: number } {
  const held = new PromptWorld(seeded(7));
  return interval(Array.from({ length: JUDGED }, () => held.prompt(true)).map((prompt) => held.step(prompt, choose(prompt)).reward));
}

const learned = judged((prompt) => MUTATIONS[learner.act(embed(prompt), true).action] as Mutation);
const guess = seeded(3);
const rows: [string, { mean: number; half: number }][] = [
  ["learned policy", learned],
  ["best possible", { mean: MENDED, half: 0 }],
  ["random mutation", judged(() => MUTATIONS[Math.floor(guess() * MUTATIONS.length)] as Mutation)],
  ...MUTATIONS.map((mutation): [string, { mean: number; half: number }] => [`always ${mutation}`, judged(() => mutation)]),
];
console.log(`\nReward on ${JUDGED} prompts of texts that it did not see, with 95 % intervals:\n`);
for (const [name, { mean, half }] of rows) {
  console.log(`  ${name.padEnd(26)} ${mean.toFixed(3).padStart(6)} ± ${half.toFixed(3)}  ${bar((mean + 0.25) / 1.25)}`);
}
const example = world.prompt(true);
const chosen = MUTATIONS[learner.act(embed(example), true).action] as Mutation;
console.log(`\nFor example, ${chosen}:\n\n  ${example}\n→ ${world.step(example, chosen).prompt.replaceAll("\n", "\n  ")}`);
