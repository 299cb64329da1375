/** `RLTrainer` with a real server: it starts `etude serve`, trains on its routes, saves the policy and stops it. */
import { existsSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { mkdtemp, rm } from "node:fs/promises";
import { NotFound, RLTrainer } from "@etude/client";
import { bar, progress } from "./table.js";
import { type Mutation, MUTATIONS, PromptWorld, seeded } from "./world.js";

const random = seeded(Number(process.argv[2] ?? 1));
const episodes = Number(process.argv[3] ?? 100);
const own = resolve("../../.venv/bin/etude"); // what `make setup` installs
const command = [existsSync(own) ? own : "etude"];
const folder = await mkdtemp(join(tmpdir(), "etude-full-"));
const world = new PromptWorld(random);
const prompts = Array.from({ length: 200 }, () => world.prompt());
const isMending = new Map(prompts.map((prompt) => [prompt, MUTATIONS.filter((one) => world.step(prompt, one).reward > 0)]));
// The real mutations write other prompts than the world's own: what counts is whether they mend the defect at hand.
const reward = (before: string, _after: string, mutation: string) => (isMending.get(before)?.includes(mutation as Mutation) ? 1 : -0.25);
const trainer = new RLTrainer({ command, port: 0, folder, outbox: "memory", reward, random });

console.log("starting etude serve …");
try {
  await trainer.start();
  console.log(`ready at ${trainer.interface.client.url}, process ${trainer.interface.pid}\n`);
  const stats = await trainer.train(prompts, {
    numEpisodes: episodes,
    episodeLength: 1,
    updateInterval: 10,
    onProgress({ episode, numEpisodes, avgReward, update }) {
      const line = `episode ${String(episode).padStart(3)}/${numEpisodes}  reward ${avgReward.toFixed(2).padStart(5)} ${bar((avgReward + 0.25) / 1.25)}`;
      progress(update ? `${line}  entropy ${update.entropy.toFixed(2)}` : line, episode === numEpisodes, episode % 10 === 0);
    },
  });
  console.log(`\n${stats.steps} steps, ${stats.updates} updates; reward per episode: ${stats.firstReward.toFixed(2)} at first, ${stats.avgReward.toFixed(2)} now`);
  console.log(`saved as ${await trainer.interface.saveCheckpoint("full")}`);
  const { mutation, prompt, propensity } = await trainer.interface.selectMutation(prompts[0] as string, { greedy: true });
  console.log(`\n  ${prompts[0]}\n→ ${mutation} (${(100 * propensity).toFixed(0)} %)\n  ${prompt.replaceAll("\n", "\n  ")}`);
} catch (error) {
  if (!(error instanceof NotFound)) throw error;
  console.error(`this server has no routes for prompt training: upgrade Etude (${error.detail})`);
  process.exitCode = 1;
} finally {
  await trainer.stop();
  await rm(folder, { recursive: true, force: true });
}
