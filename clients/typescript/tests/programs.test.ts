/** The programs that a newcomer starts. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { promisify } from "node:util";

const run = promisify(execFile);

test("npm run demo learns to mend prompts that it did not see", async () => {
  const { stdout } = await run(process.execPath, ["build/programs/demo.js"]);
  const mean = (name: string) => Number(new RegExp(`${name}\\s+(-?[\\d.]+) ±`).exec(stdout)?.[1]);
  assert.ok(mean("learned policy") > 0.9, stdout);
  assert.ok(mean("random mutation") < 0.2, stdout);
});

test("npm run simulated trains over HTTP", async () => {
  const { stdout } = await run(process.execPath, ["build/programs/simulated.js"]);
  const [, first, last] = /reward per episode: (-?[\d.]+) at first, (-?[\d.]+) now/.exec(stdout) ?? [];
  assert.ok(Number(last) > Number(first) + 0.4, stdout);
  assert.match(stdout, /loaded again: true/);
});
