/** What waits to be sent: it survives a server that is away and the end of a process, and nothing is stored twice. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFile, readdir, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, test } from "node:test";
import { promisify } from "node:util";
import { EtudeClient, Forbidden, Unauthorized } from "@etude/client";
import { MemoryStore } from "../src/outbox.js";
import { FolderStore } from "../src/platform/folder-store.js";
import { snapshot } from "../src/values.js";
import { WITHOUT_SERVER, client, eventually, freePort, front, key, newFolder, server, stored } from "./etude.js";

const run = promisify(execFile);
const OPTIONS = { options: ["formal", "casual"] } as const;
const quiet = () => undefined;

describe("the outbox", { skip: WITHOUT_SERVER }, () => {
  test("keeps tasks and ratings while the server is away, and sends them in order when it is there", async () => {
    const port = await freePort();
    const folder = await newFolder();
    const away = await client({ url: `http://127.0.0.1:${port}`, outbox: folder, decideTimeoutMs: 100, log: quiet });
    const ids: string[] = [];
    for (let i = 0; i < 3; i++) {
      const id = await away.task(`task ${i}`, { user: "u1" }, async (task) => {
        await task.decide("tone", "", OPTIONS);
        return task.id;
      });
      ids.push(id);
    }
    assert.deepEqual(await away.feedback(ids[0] as string, { thumbs: "up", comment: "good" }), { waiting: true });
    assert.equal((await readdir(folder)).filter((name) => name.endsWith(".json")).length, 4);
    assert.equal((await stat(folder)).mode & 0o077, 0); // nobody else reads it
    await away.close(0);

    const before = await front({ port });
    const back = await client({ url: before.url, outbox: folder }); // as after a restart
    assert.equal(await back.outbox.flush(), 0);
    const paths = before.requests.map((one) => one.path);
    assert.deepEqual(paths, ["/v1/trajectories", "/v1/feedback"]); // together, then the rating
    for (const id of ids) assert.equal((await stored(back, id)).trajectory.decisions?.[0]?.policy, "default");
    const rated = await eventually(async () => (await stored(back, ids[0] as string)).feedback?.[0]);
    assert.deepEqual([rated.thumbs, rated.comment], ["up", "good"]);
  });

  test("sends by itself when the server is back", async () => {
    const port = await freePort();
    const etude = await client({ url: `http://127.0.0.1:${port}`, decideTimeoutMs: 100, log: quiet });
    const id = await etude.task("later", (task) => task.id);
    await front({ port });
    await eventually(async () => (await etude.outbox.waiting()).length === 0);
    assert.equal((await stored(etude, id)).trajectory.task, "later");
  });

  test("stores nothing twice although answers are lost", async () => {
    let lost = 0;
    const before = await front({ drop: () => lost++ < 2 });
    const etude = await client({ url: before.url, retries: 0, log: quiet });
    const direct = await client();
    const given = await direct.decide({ problem: "choice:twice", context: "", options: ["a"] });
    const reported = await etude.feedback(given.id, { success: true, stars: 5 });
    if (reported.waiting) assert.equal(await etude.outbox.flush(), 0);
    assert.ok(before.requests.length >= 3);
    assert.equal(new Set(before.requests.map((one) => one.headers["idempotency-key"])).size, 1);
    const { feedback } = await eventually(async () => {
      const found = await stored(direct, given.id.split(".")[0] as string);
      return found.feedback?.length ? found : null;
    });
    assert.equal(feedback?.length, 1);
    assert.deepEqual(await etude.outbox.refused(), []);
  });

  test("keeps what the server refuses, with the reason, and sends it again when that is over", async () => {
    const folder = await newFolder();
    const logged: string[] = [];
    const wrong = await client({ outbox: folder, apiKey: await key("decide", "--tenant", "acme"), log: (text) => logged.push(text) });
    const etude = await client({ outbox: folder });
    const { id } = await etude.decide({ problem: "choice:refused", context: "", options: ["a"] });
    await wrong.outbox.add({ id: "f-refused", path: "/v1/feedback", body: { id, success: true } });
    await wrong.outbox.flush();
    const [refused] = await wrong.outbox.refused();
    assert.match(refused?.reason ?? "", /was not signed here for this key/);
    assert.match(logged.join(), /refused f-refused, which is kept/);
    await etude.outbox.retryRefused();
    assert.equal(await etude.outbox.flush(), 0);
    assert.deepEqual(await etude.outbox.refused(), []);
    assert.equal((await stored(etude, id.split(".")[0] as string)).trajectory.outcome?.success, true);
    await assert.rejects(wrong.feedback(id, { thumbs: "up" }), Forbidden); // the caller is told, so nothing is kept
    assert.deepEqual(await wrong.outbox.refused(), []);
  });

  test("waits for the right key", async () => {
    const folder = await newFolder();
    const wrong = await client({ outbox: folder, apiKey: "etude_wrong", log: quiet });
    await assert.rejects(wrong.choose("tone", "", OPTIONS), Unauthorized); // once, so that it is seen
    assert.equal((await wrong.choose("tone", "", OPTIONS)).fallback, "key");
    const id = await wrong.task("kept", (task) => task.id);
    await wrong.outbox.flush();
    assert.equal((await wrong.outbox.waiting()).length, 1);
    await wrong.close(0);
    const right = await client({ outbox: folder });
    assert.equal(await right.outbox.flush(), 0);
    assert.equal((await stored(right, id)).trajectory.task, "kept");
  });

  test("one entry that is refused stops no other", async () => {
    const etude = await client({ log: quiet });
    const body = (id: string) => ({ type: "agent.rl.trajectory.v1", id, time: new Date().toISOString(), task: id, problem: "task" });
    await etude.outbox.add({ id: "t-good-1", path: "/v1/trajectories", body: body("t-good-1") });
    await etude.outbox.add({ id: "t-bad", path: "/v1/trajectories", body: { ...body("t-bad"), problem: 7 } });
    await etude.outbox.add({ id: "t-good-2", path: "/v1/trajectories", body: body("t-good-2") });
    assert.equal(await etude.outbox.flush(), 0);
    assert.deepEqual((await etude.outbox.refused()).map((one) => one.entry.id), ["t-bad"]);
    for (const id of ["t-good-1", "t-good-2"]) assert.equal((await stored(etude, id)).trajectory.id, id);
  });

  test("several processes share a folder, and what a killed one left is sent by the next", async () => {
    const { url, apiKey } = await server();
    const folder = await newFolder();
    const program = `
      import { EtudeClient } from "@etude/client";
      const etude = new EtudeClient({ url: process.argv[1], apiKey: process.argv[2], outbox: process.argv[3], log() {} });
      const ids = [];
      for (let i = 0; i < 5; i++) ids.push(await etude.task("of " + process.pid, (task) => task.id));
      console.log(ids.join());
      if (process.argv[4] === "killed") process.kill(process.pid, "SIGKILL");
      await etude.close(10000);`;
    const one = (...more: string[]) => run(process.execPath, ["--input-type=module", "-e", program, url, apiKey, folder, ...more]).then(
      (done) => done.stdout,
      (error: { stdout: string }) => error.stdout,
    );
    const ids = (await Promise.all([one(), one(), one("killed")])).flatMap((text) => text.trim().split(","));
    assert.equal(ids.length, 15);
    const etude = await client({ outbox: folder, log: quiet });
    await eventually(async () => (await etude.outbox.flush()) === 0);
    for (const id of ids) assert.equal((await stored(etude, id)).trajectory.id, id);
    assert.deepEqual(await etude.outbox.refused(), []);
    assert.deepEqual((await readdir(folder)).filter((name) => !name.startsWith("refused")), []); // no lock, nothing half written
  });

  test("a task is not lost in silence where nothing can be written", async () => {
    const file = join(await newFolder(), "a-file");
    await writeFile(file, "");
    const logged: string[] = [];
    const etude = await client({ outbox: join(file, "outbox"), log: (text) => logged.push(text) });
    const collected = await etude.openTask("t").end();
    assert.equal(collected, false);
    assert.match(logged.join(), /is not stored: .*ENOTDIR/);
  });
});

describe("a folder", () => {
  test("a file that cannot be read is kept out of the way", async () => {
    const folder = await newFolder();
    const store = new FolderStore(folder);
    const name = await store.add({ id: "f-1", path: "/v1/feedback", body: { ok: 1 } });
    await writeFile(join(folder, "000-broken.json"), "{");
    assert.deepEqual((await store.list(10)).map((one) => one.name), [name]);
    assert.equal(await readFile(join(folder, "refused", "000-broken.json.unreadable"), "utf8"), "{");
  });

  test("one at a time has the lock, and that of a process that is gone is taken over", async () => {
    const folder = await newFolder();
    const [one, other] = [new FolderStore(folder), new FolderStore(folder)];
    const unlock = await one.lock();
    assert.equal(await other.lock(), null);
    await unlock?.();
    const { pid } = await run(process.execPath, ["-e", "console.log(process.pid)"]).then((done) => ({ pid: done.stdout.trim() }));
    await writeFile(join(folder, "sending.lock"), `${pid} 0.5`);
    assert.ok(await other.lock());
  });

  test("is missing until it is needed", async () => {
    const folder = join(await newFolder(), "never");
    const store = new FolderStore(folder);
    assert.deepEqual([await store.list(1), await store.refused()], [[], []]);
    await assert.rejects(stat(folder));
  });
});

describe("memory", () => {
  test("holds a limited number of entries, and says what it drops", async () => {
    const logged: string[] = [];
    const store = new MemoryStore((text) => logged.push(text));
    for (let i = 0; i < 1001; i++) await store.add({ id: `f-${i}`, path: "/v1/feedback", body: {} });
    const found = await store.list(Infinity);
    assert.deepEqual([found.length, found[0]?.entry.id, logged.length], [1000, "f-1", 1]);
  });

  test("an outbox in memory leaves no folder", async () => {
    const folder = await newFolder();
    const etude = new EtudeClient({ url: `http://127.0.0.1:${await freePort()}`, outbox: "memory", log: quiet, decideTimeoutMs: 50 });
    const here = process.cwd();
    process.chdir(folder);
    try {
      await etude.task("t", (task) => task.id);
      await etude.outbox.flush();
    } finally {
      process.chdir(here);
    }
    assert.equal((await etude.outbox.waiting()).length, 1);
    assert.deepEqual(await readdir(folder), []);
    await etude.close(0);
    await rm(folder, { recursive: true });
  });
});

describe("values", () => {
  test("of any kind become JSON that can be sent, as they are now", () => {
    const itself: Record<string, unknown> = { a: 1 };
    itself["me"] = itself;
    const deep = Array.from({ length: 500 }).reduce<unknown>((inner) => [inner], "x");
    const odd = {
      itself, deep, half: "a\ud800b", pair: "😀", n: 10n, nan: Number.NaN, none: undefined, run() {}, symbol: Symbol("s"),
      when: new Date(0), never: new Date(Number.NaN), map: new Map([["k", new Set([1])]]), bytes: new Uint8Array([1, 2]), error: new Error("bad"),
      get thrown() { throw new Error("no"); },
    };
    assert.equal(snapshot(odd), "<unreadable>");
    const { thrown: _, ...rest } = Object.getOwnPropertyDescriptors(odd);
    const found = snapshot(Object.defineProperties({}, rest)) as Record<string, unknown>;
    assert.deepEqual(found["itself"], { a: 1, me: "<itself>" });
    assert.deepEqual([found["half"], found["pair"], found["n"], found["nan"], found["symbol"]], ["a\ufffdb", "😀", "10", null, null]);
    assert.deepEqual([found["when"], found["never"], found["map"], found["bytes"], found["error"]], ["1970-01-01T00:00:00.000Z", null, { k: [1] }, [1, 2], "Error: bad"]);
    assert.ok(!("none" in found) && !("run" in found));
    assert.ok(JSON.stringify(found["deep"]).includes("<too deep>"));
    const value = { list: [1] };
    const copy = snapshot(value);
    value.list.push(2);
    assert.deepEqual(copy, { list: [1] });
  });
});
