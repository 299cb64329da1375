/** `RLTrainer` as it is used, over HTTP, with a simulated server in this process: no Python. */
import { RLTrainer } from "@etude/client";
import { SimulatedServer } from "./simulated-server.js";
import { bar, progress } from "./table.js";
import { type Mutation, PromptWorld, seeded } from "./world.js";

const random = seeded(Number(process.argv[2] ?? 1));
const world = new PromptWorld(random);
const server = new SimulatedServer(world, random);
const url = await server.start();
const reward = (before: string, _after: string, mutation: string) => world.step(before, mutation as Mutation).reward;
const trainer = new RLTrainer({ url, outbox: "memory", reward, random });
console.log(`a simulated server at ${url}; episodes of at most 2 mutations\n`);

const prompts = Array.from({ length: 200 }, () => world.prompt());
const began = performance.now();
const stats = await trainer.train(prompts, {
  numEpisodes: 400,
  episodeLength: 2,
  updateInterval: 20,
  onProgress({ episode, numEpisodes, avgReward, update }) {
    const line = `episode ${String(episode).padStart(3)}/${numEpisodes}  reward ${avgReward.toFixed(2).padStart(5)} ${bar(avgReward / 1.3)}`;
    if (update) progress(`${line}  entropy ${update.entropy.toFixed(2)}`, episode === numEpisodes, episode % 40 === 0);
  },
});
const seconds = (performance.now() - began) / 1000;

console.log(`\n${stats.episodes} episodes, ${stats.steps} steps, ${stats.updates} updates in ${seconds.toFixed(1)} s`);
console.log(`reward per episode: ${stats.firstReward.toFixed(2)} at first, ${stats.avgReward.toFixed(2)} now`);
const rl = trainer.interface;
const version = await rl.saveCheckpoint();
console.log(`saved as ${version}; loaded again: ${await rl.loadCheckpoint(version)}`);
for (const prompt of prompts.slice(0, 3)) {
  const [[mutation, share] = ["", 0]] = Object.entries(await rl.getDistribution(prompt)).sort(([, a], [, b]) => b - a);
  console.log(`\n  ${prompt}\n→ ${mutation} (${(100 * share).toFixed(0)} %)`);
}
server.stop();
