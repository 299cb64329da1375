/** `RLTrainer` with a real server: it starts `etude serve`, trains on its routes, saves the policy and stops it. */
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { NotFound, RLTrainer } from "@etude/client";
import { bar, progress } from "./table.js";
import { MENDED, MUTATIONS, type Mutation, PromptWorld, USELESS, seeded } from "./world.js";

const PROMPTS = 120;
const LINES = 12;

const random = seeded(Number(process.argv[2] ?? 1));
const episodes = Number(process.argv[3] ?? 1500);
const own = resolve("../../.venv/bin/etude"); // what `make setup` installs
const command = [process.env["ETUDE"] ?? (existsSync(own) ? own : "etude")];
const folder = await mkdtemp(join(tmpdir(), "etude-full-"));
const interrupted = new AbortController();
for (const name of ["SIGINT", "SIGTERM"] as const)
  process.once(name, () => interrupted.abort(new Error("interrupted")));
const { signal } = interrupted;

const world = new PromptWorld(random);
const mending = new Map<string, Mutation[]>();
// The real mutations write other prompts than the world's own: what counts is whether they mend the defect at hand.
const reward = (before: string, _after: string, mutation: string) =>
  mending.get(before)?.includes(mutation as Mutation) ? MENDED : USELESS;
const patient = { startTimeoutMs: 180_000, timeoutMs: 180_000 }; // the first answer loads the networks
const trainer = new RLTrainer({ command, port: 0, folder, outbox: "memory", reward, random, ...patient });
const rl = trainer.interface;

console.log("starting etude serve …");
try {
  await trainer.start();
  console.log(`ready at ${rl.client.url}, process ${rl.pid}; its first answer loads the networks\n`);
  for (let tried = 0; tried < PROMPTS; tried++) {
    const prompt = world.prompt();
    const share = await rl.getDistribution(prompt, { signal });
    const useful = MUTATIONS.filter((one) => world.step(prompt, one).reward > 0 && (share[one] ?? 0) > 0);
    if (useful.length) mending.set(prompt, useful);
  }
  console.log(`${mending.size} prompts that a mutation mends; a mutation that mends one is worth ${MENDED}`);
  const stats = await trainer.train([...mending.keys()], {
    numEpisodes: episodes,
    episodeLength: 1,
    updateInterval: 64, // what one update needs
    signal,
    onProgress({ episode, numEpisodes, avgReward, update }) {
      const line = `episode ${String(episode).padStart(4)}/${numEpisodes}  reward ${avgReward.toFixed(2).padStart(5)} ${bar((avgReward - USELESS) / (MENDED - USELESS))}`;
      const isDue = episode % Math.ceil(numEpisodes / LINES) === 0;
      progress(
        update ? `${line}  entropy ${update.entropy.toFixed(2)}` : line,
        episode === numEpisodes,
        isDue,
      );
    },
  });
  console.log(
    `\n${stats.steps} steps, ${stats.updates} updates; reward per episode: ${stats.firstReward.toFixed(2)} at first, ${stats.avgReward.toFixed(2)} now`,
  );
  console.log(`saved as ${await rl.saveCheckpoint("full", { signal })}`);
  const [before = ""] = mending.keys();
  const { mutation, prompt: after } = await rl.selectMutation(before, { greedy: true, signal });
  const share = (await rl.getDistribution(before, { signal }))[mutation] ?? 0;
  console.log(`\n  ${before}\n→ ${mutation} (${(100 * share).toFixed(0)} %)\n  ${after.replaceAll("\n", "\n  ")}`);
} catch (error) {
  if (!signal.aborted && !(error instanceof NotFound)) throw error;
  const why = signal.aborted ? "interrupted" : "this server has no routes for prompt training: upgrade Etude";
  console.error(`\n${why}; the server is being stopped`);
  process.exitCode = 1;
} finally {
  await trainer.stop();
  await rm(folder, { recursive: true, force: true });
}
