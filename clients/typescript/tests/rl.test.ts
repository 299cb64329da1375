/** Prompt training by its names, with the simulated server and, where it has the routes, with a real one. */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { ConfigError, EtudeClient, NotFound, RLInterface, RLTrainer, ServerAway, promptReward, promptScore } from "@etude/client";
import { SimulatedServer } from "../programs/simulated-server.js";
import { MUTATIONS, type Mutation, PromptWorld, seeded } from "../programs/world.js";
import { COMMAND, WITHOUT_SERVER, client, newFolder, server } from "./etude.js";

const PROMPT = "Fix the login page.";

describe("with the simulated server", () => {
  const world = new PromptWorld(seeded(5));
  const simulated = new SimulatedServer(world, seeded(6));
  const reward = (before: string, _after: string, mutation: string) => world.step(before, mutation as Mutation).reward;
  let url = "";
  before(async () => {
    url = await simulated.start();
  });
  after(() => simulated.stop());

  test("actions, distributions, experience, updates and checkpoints", async () => {
    const rl = new RLInterface({ url, outbox: "memory" });
    const selected = await rl.selectAction(Array.from({ length: 256 }, (_, i) => i / 256));
    assert.equal(MUTATIONS[selected.action], selected.mutation);
    assert.equal(selected.probabilities[selected.mutation], selected.propensity);
    assert.ok(Math.abs(Math.log(selected.propensity) - selected.log_prob) < 1e-9);
    const mutated = await rl.selectMutation(PROMPT);
    assert.ok(mutated.prompt.includes(PROMPT) || mutated.mutation === "context-reduction");
    assert.equal(await rl.update(), null); // too little
    for (let i = 1; i <= 16; i++) {
      const answer = await rl.storeExperience({ prompt: PROMPT, action: 2, reward: 1, done: true });
      assert.deepEqual(answer, { stored: true, buffer_size: i });
    }
    const first = await rl.saveCheckpoint("first");
    const before = await rl.getDistribution(PROMPT);
    assert.equal((await rl.update())?.epochs, 4);
    const learned = await rl.getDistribution(PROMPT);
    assert.ok((learned["expansion"] as number) > (before["expansion"] as number));
    assert.equal(await rl.loadCheckpoint(first), true);
    assert.deepEqual(await rl.getDistribution(PROMPT), before);
    assert.equal(await rl.loadCheckpoint("no-such-version"), false);
    await assert.rejects(rl.selectAction([Number.NaN]), /embedding\[0\]/);
    await assert.rejects(rl.storeExperience({ prompt: PROMPT, action: 0, reward: Number.NaN, done: true }), /finite/);
  });

  test("a trainer learns, shows its progress, and ends when it is told to", async () => {
    const trainer = new RLTrainer({ url, outbox: "memory", reward, random: seeded(1) });
    const prompts = Array.from({ length: 100 }, () => world.prompt());
    const episodes: number[] = [];
    const stats = await trainer.train(prompts, { numEpisodes: 300, episodeLength: 1, updateInterval: 20, onProgress: (now) => episodes.push(now.episode) });
    assert.equal(episodes.length, 300);
    assert.deepEqual([stats.episodes, stats.steps, stats.updates, stats.rewards.length], [300, 300, 15, 300]);
    assert.ok(stats.avgReward > stats.firstReward + 0.3, `${stats.firstReward} … ${stats.avgReward}`);
    const stop = new AbortController();
    const stopped = trainer.train(prompts, { signal: stop.signal, onProgress: ({ episode }) => episode === 3 && stop.abort() });
    await assert.rejects(stopped, { name: "AbortError" });
    await assert.rejects(trainer.train([]), /prompts is empty/);
    await assert.rejects(trainer.train(prompts, 0), /numEpisodes/);
  });

  test("the numbers of the document's call stand where it puts them", async () => {
    const lengths: number[] = [];
    const trainer = new RLTrainer({ url, outbox: "memory", reward: () => 0.5, random: seeded(1) });
    const stats = await trainer.train(["Do a thing."], 4, 3, 2);
    lengths.push(stats.episodes, stats.steps);
    assert.equal(stats.episodes, 4);
    assert.ok(stats.steps > 4 && stats.steps <= 12, `${stats.steps}`);
    assert.ok(Math.abs(stats.avgReward - 0.5 * (stats.steps / 4)) <= 1);
  });
});

describe("with a real server", { skip: WITHOUT_SERVER }, () => {
  test("a server is started, waited for, and stopped with its key", async () => {
    const rl = new RLInterface({ command: COMMAND, port: 0, folder: await newFolder(), outbox: "memory", startTimeoutMs: 180_000 });
    await rl.startServer();
    const { url } = rl.client;
    assert.equal((await rl.client.call("GET /ready", {})).status, "ready");
    assert.ok((await rl.client.decide({ problem: "choice:x", context: "", options: ["a"] })).id);
    const pid = rl.pid as number;
    process.kill(pid, 0);
    await rl.stopServer();
    assert.throws(() => process.kill(pid, 0));
    await assert.rejects(new EtudeClient({ url, outbox: "memory", retries: 0 }).call("GET /health", {}), ServerAway);
  });

  test("a command that is not there, and a server that cannot start, are named", async () => {
    await assert.rejects(new RLInterface({ command: ["no-such-etude"], outbox: "memory" }).startServer(), ConfigError);
    const { url } = await client();
    const port = Number(new URL(url).port);
    const rl = new RLInterface({ command: COMMAND, port, folder: await newFolder(), outbox: "memory", apiKey: "etude_any" });
    await assert.rejects(rl.startServer(), /cannot listen there/);
  });

  test("the routes of prompt training", async (t) => {
    const etude = await client();
    const { paths } = await etude.get<{ paths: Record<string, unknown> }>("/openapi.json");
    if (!("/select_action" in paths)) return t.skip("the server has no routes for prompt training");
    const trainer = new RLTrainer({ url: etude.url, apiKey: (await server()).apiKey, outbox: "memory", random: seeded(2) });
    const rl = trainer.interface;
    const mutated = await etude.selectMutation("Write a function that adds two numbers.");
    assert.ok(mutated.propensity > 0 && mutated.prompt.length > 0);
    assert.deepEqual(Object.keys(await rl.getDistribution("Fix it.")).sort(), [...Object.keys(mutated.probabilities)].sort());
    const stats = await trainer.train(["Fix the login page.", "Write as much as you like about invoices."], 12, 2, 6);
    assert.equal(stats.episodes, 12);
    const version = await rl.saveCheckpoint("of-a-test");
    assert.equal(await rl.loadCheckpoint(version), true);
    assert.equal(await rl.loadCheckpoint("0".repeat(16)), false);
  });
});

test("what a server without these routes says is a typed error", { skip: WITHOUT_SERVER }, async (t) => {
  const etude = await client();
  const { paths } = await etude.get<{ paths: Record<string, unknown> }>("/openapi.json");
  if ("/select_action" in paths) return t.skip("this server has them");
  await assert.rejects(etude.selectMutation("x"), NotFound);
});

test("the rough reward sees limits, steps and what may go wrong, and no gain in mere length", () => {
  const plain = "Write about invoices.";
  assert.ok(promptReward(plain, `${plain}\nIf a number is missing, say so.`) > 0);
  assert.ok(promptReward(plain, `${plain}\n1. Collect\n2. Sort\n3. Write`) > 0);
  assert.equal(promptReward(plain, plain), 0);
  assert.ok(promptScore("word ".repeat(5000)) < promptScore("word ".repeat(100)));
  assert.ok(promptScore("") >= 0 && promptScore("must ".repeat(1000)) <= 1);
});
