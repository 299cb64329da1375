/** The programs that a newcomer starts. */
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { COMMAND, WITHOUT_SERVER } from "./etude.js";

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

const env = { ...process.env, ETUDE: join(dirname(COMMAND[0] as string), "etude") };

test("npm run full trains with a real server, and stops it", { skip: WITHOUT_SERVER }, async () => {
  const { stdout } = await run(process.execPath, ["build/programs/full.js", "1", "192"], { env });
  assert.match(stdout, /192 steps, 3 updates; reward per episode: -?[\d.]+ at first, -?[\d.]+ now/);
  assert.match(stdout, /saved as [0-9a-f]{16}/);
  assert.match(stdout, /→ [a-z-]+ \(\d+ %\)/);
  assert.throws(() => process.kill(pidIn(stdout), 0), /ESRCH/);
});

test("npm run full stops its server when it is interrupted", { skip: WITHOUT_SERVER }, async () => {
  const child = spawn(process.execPath, ["build/programs/full.js"], { env, stdio: ["ignore", "pipe", "pipe"] });
  let printed = "";
  child.stderr.on("data", (text) => (printed += String(text)));
  for await (const text of child.stdout) {
    printed += String(text);
    if (printed.includes("process ")) break;
  }
  child.kill("SIGTERM");
  const [code] = (await once(child, "exit")) as [number];
  assert.equal(code, 1);
  assert.match(printed, /interrupted/);
  assert.throws(() => process.kill(pidIn(printed), 0), /ESRCH/);
});

test("npm run full says what to install where there is no Etude", async () => {
  const failed = run(process.execPath, ["build/programs/full.js"], { env: { ...process.env, ETUDE: "etude-is-away" } });
  await assert.rejects(failed, /there is no command 'etude-is-away': install it with/);
});

function pidIn(printed: string): number {
  return Number(/process (\d+)/.exec(printed)?.[1]);
}
