/** Decisions, tasks, ratings and the other routes, with a real server. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import {
  BadRequest,
  ConfigError,
  Conflict,
  EtudeClient,
  Forbidden,
  NotEtude,
  NotFound,
  RateLimited,
  ServerAway,
  ServerFailed,
  TimedOut,
  TooLarge,
  Unauthorized,
  VersionMismatch,
} from "@etude/client";
import { understands } from "../src/version.js";
import { WITHOUT_SERVER, client, eventually, freePort, front, key, refuse, server, stored } from "./etude.js";

const ASKED = { problem: "choice:model", context: "where is my parcel?", options: ["small", "large"] };
const MODELS = [
  { name: "small", description: "quick", cost_usd: 0.0004 },
  { name: "large", description: "für schwere Fragen ✓", cost_usd: 0.02 },
] as const;

describe("decisions", { skip: WITHOUT_SERVER }, () => {
  test("a decision, and its outcome under its id", async () => {
    const etude = await client();
    const given = await etude.decide(ASKED);
    assert.ok(ASKED.options.includes(given.action as string));
    assert.equal(given.propensity, 0.5);
    const reported = await etude.feedback(given.id, { success: true, cost_usd: 0.0004, thumbs: "up" });
    assert.deepEqual(reported, { trajectory: given.id.split(".")[0], outcome: true, rating: true, waiting: false });
    const { trajectory } = await stored(etude, given.id.split(".")[0] as string);
    assert.deepEqual([trajectory.outcome?.success, trajectory.outcome?.cost_usd], [true, 0.0004]);
    await assert.rejects(etude.feedback(given.id, { success: false }), Conflict);
    assert.deepEqual(await etude.outbox.refused(), []); // the caller knows
  });

  test("many decisions at once", async () => {
    const given = await (await client()).decideAll(Array.from({ length: 5 }, () => ASKED));
    assert.equal(new Set(given.map((one) => one.id)).size, 5);
  });

  test("a task is stored as a whole, with what its decisions were", async () => {
    const etude = await client();
    const seen = await etude.task(
      "answer the customer",
      { user: "u1", agent: "zero", model: "m-3", conversation: "c1", metadata: { kind: "mail" } },
      async (task) => {
        const chosen = await task.decide(
          "model",
          { text: "where is it?" },
          { options: MODELS, default: "large", quality_weight: 1 },
        );
        assert.ok(MODELS.includes(chosen.option)); // the very object that was offered
        task.turn({
          observation: "a mail",
          action: chosen.name,
          result: { when: new Date(0), n: 1n, odd: Number.NaN },
          cost_usd: 0.5,
        });
        task.turn({ error: new TypeError("late"), cost_usd: 0.25 });
        task.decided("route", "b", { policy: "router-7", propensity: 0.25, options: ["a", "b"] });
        task.outcome({ quality: { judge: 0.75 } });
        task.feedback({ stars: 4 });
        assert.match(task.signedId ?? "", new RegExp(`^${task.id}\\.`));
        return { chosen, id: task.id };
      },
    );
    const { trajectory } = await stored(etude, seen.id);
    const [decision, other] = trajectory.decisions ?? [];
    assert.deepEqual(
      [decision?.problem, decision?.action, decision?.propensity, decision?.policy],
      ["choice:model", seen.chosen.name, seen.chosen.propensity, seen.chosen.policy],
    );
    assert.deepEqual(decision?.eligible, MODELS);
    assert.deepEqual([other?.problem, other?.action, other?.propensity], ["choice:route", "b", 0.25]);
    assert.deepEqual(trajectory.turns?.[0]?.result, { when: "1970-01-01T00:00:00.000Z", n: "1", odd: null });
    assert.equal(trajectory.turns?.[1]?.error, "TypeError: late");
    assert.deepEqual(
      [trajectory.outcome?.success, trajectory.outcome?.cost_usd, trajectory.outcome?.quality],
      [true, 0.75, { judge: 0.75 }],
    );
    assert.deepEqual([trajectory.user, trajectory.agent, trajectory.model], ["u1", "zero", "m-3"]);
    assert.deepEqual(trajectory.feedback, [{ stars: 4 }]);
  });

  test("a task that throws has failed, and one that is aborted was cancelled", async () => {
    const etude = await client();
    const ids: string[] = [];
    for (const error of [new RangeError("no ✓"), new DOMException("stop", "AbortError")]) {
      const run = etude.task("fails", (task) => {
        ids.push(task.id);
        throw error;
      });
      await assert.rejects(run, (thrown) => thrown === error);
    }
    const [failed, cancelled] = await Promise.all(
      ids.map(async (id) => (await stored(etude, id)).trajectory.outcome),
    );
    assert.deepEqual([failed?.success, failed?.ended, failed?.error], [false, "failed", "RangeError: no ✓"]);
    assert.deepEqual([cancelled?.success ?? null, cancelled?.ended], [null, "cancelled"]);
  });

  test("a choice whose outcome is reported once, and rated later", async () => {
    const etude = await client();
    const tone = await etude.choose("tone", "an angry customer", { options: ["formal", "casual"], user: "u7" });
    assert.ok(["formal", "casual"].includes(tone.option));
    assert.equal(await tone.task.outcome({ success: false, cost_usd: 0.1 }), true);
    await assert.rejects(tone.task.outcome({ success: true }), /reported already/);
    const { trajectory } = await stored(etude, tone.task.id);
    assert.deepEqual(
      [trajectory.task, trajectory.user, trajectory.outcome?.success],
      ["an angry customer", "u7", false],
    );
    assert.equal((await tone.task.feedback({ stars: 2, user: "u7" })).waiting, false);
  });

  test("a problem's policy is asked without a default", async () => {
    const etude = await client();
    await etude.task("allocate", async (task) => {
      await assert.rejects(task.ask("nonsense", 1), BadRequest);
    });
  });
});

test("a message says what is wrong once, and where if it does not say so itself", () => {
  const made = (detail: string, ...errors: { field: string; detail: string }[]) =>
    new BadRequest({ type: "about:blank", title: "Bad Request", status: 400, detail, errors }).message;
  assert.equal(made("a is 1", { field: "a", detail: "a is 1" }), "400 Bad Request: a is 1");
  assert.equal(made("'c' is unknown", { field: "default", detail: "'c' is unknown" }), "400 Bad Request: 'c' is unknown (default)");
  assert.equal(
    made("two are wrong", { field: "a", detail: "too long" }, { field: "b", detail: "too short" }),
    "400 Bad Request: two are wrong (a: too long; b: too short)",
  );
});

test("an empty key is said to be empty", () => {
  assert.throws(() => new EtudeClient({ apiKey: "", outbox: "memory" }), /apiKey is empty: give it/);
});

describe("errors", { skip: WITHOUT_SERVER }, () => {
  test("each refusal has its class, the server's words and the field", async () => {
    const etude = await client({ retries: 0 });
    const field = async (asked: object) => {
      const error = await etude.decide(asked as typeof ASKED).then(
        () => assert.fail(),
        (found: unknown) => found,
      );
      assert.ok(error instanceof BadRequest, String(error));
      assert.match(error.requestId, /^[0-9a-f]+$/);
      return error.field;
    };
    assert.equal(await field({ ...ASKED, problem: undefined }), "problem");
    assert.equal(await field({ ...ASKED, preferences: { quality_weight: "much" } }), "preferences.quality_weight");
    assert.equal(await field({ ...ASKED, surprise: 1 }), "surprise");
    assert.equal(await field({ ...ASKED, options: [] }), "options");
    assert.equal(await field({ ...ASKED, options: ["a", "a"] }), "options[1]");
    await assert.rejects(etude.jobs.show("no-such-job"), NotFound);
    await assert.rejects(etude.decide({ ...ASKED, context: "x".repeat(20_000_000) }), TooLarge);
    await assert.rejects((await client({ apiKey: "etude_nope" })).decide(ASKED), Unauthorized);
    await assert.rejects((await client({ apiKey: await key("ingest") })).decide(ASKED), Forbidden);
  });

  test("options that are wrong are refused before anything is sent", async () => {
    for (const options of [
      { url: "nonsense" },
      { url: "http://u:p@h" },
      { url: "/path" },
      { timeoutMs: 0 },
      { apiKey: "a b" },
      { retries: Number.NaN },
    ]) {
      assert.throws(
        () => new EtudeClient({ outbox: "memory", ...options }),
        ConfigError,
        JSON.stringify(options),
      );
    }
    const etude = await client();
    await etude.task("t", async (task) => {
      await assert.rejects(task.decide("m", "", { options: [] }), /options/);
      await assert.rejects(task.decide("m", "", { options: ["a", "a"] }), BadRequest);
      await assert.rejects(task.decide("m", "", { options: ["a"], default: "b" as "a" }), /not among/);
      await assert.rejects(task.decide("m", "", { options: ["a"], allowed: [] }), BadRequest);
    });
  });

  test("what is not a server of Etude is named so", async () => {
    const before = await front();
    before.fault = (_request, response) =>
      response.writeHead(200, { "content-type": "text/html" }).end("<h1>hello</h1>");
    await assert.rejects((await client({ url: before.url })).decide(ASKED), NotEtude);
    before.fault = (_request, response) =>
      response.writeHead(404, { "content-type": "text/html" }).end("<h1>not found</h1>");
    await assert.rejects((await client({ url: before.url })).decide(ASKED), /does url name `etude serve`/);
  });

  test("a server of another version is named with what to do, and nothing is lost", async () => {
    const before = await front({ headers: { "etude-version": "7.1.0" } });
    const logged: string[] = [];
    const etude = await client({ url: before.url, log: (text) => logged.push(text) });
    const error = await etude.decide(ASKED).then(
      () => assert.fail(),
      (found: unknown) => found,
    );
    assert.ok(error instanceof VersionMismatch);
    assert.deepEqual([error.server, error.client], ["7.1.0", "0.1.0"]);
    assert.match(error.message, /npm install @etude\/client@7\.1/);
    const tone = await etude.choose("tone", "", { options: ["formal", "casual"], default: "casual" });
    assert.deepEqual([tone.option, tone.policy, tone.fallback], ["casual", "default", "version"]);
    await tone.task.outcome({ success: true });
    await etude.outbox.flush();
    assert.equal((await etude.outbox.waiting()).length, 1);
    assert.match(logged.join(), /npm install/);
    assert.ok((await (await client({ url: before.url, anyVersion: true })).decide(ASKED)).id);
  });

  test("versions understand each other by their major, and before 1.0 by their minor number", () => {
    assert.deepEqual(
      ["0.1.9", "0.2.0", "1.1.0"].map((server) => understands("0.1.0", server)),
      [true, false, false],
    );
    assert.deepEqual(
      ["1.9.0", "2.0.0"].map((server) => understands("1.2.0", server)),
      [true, false],
    );
  });
});

describe("a bad network", { skip: WITHOUT_SERVER }, () => {
  test("a refusal that passes is tried again, under the same idempotency key", async () => {
    const before = await front();
    let failures = 2;
    before.fault = (_request, response) => (failures-- > 0 ? refuse(response, 503) : undefined);
    const etude = await client({ url: before.url });
    assert.equal((await etude.decideAll([ASKED])).length, 1);
    const keys = before.requests.map((one) => one.headers["idempotency-key"]);
    assert.deepEqual([keys.length, new Set(keys).size], [3, 1]);
    assert.ok(keys[0]);
  });

  test("retry-after is waited for, and not longer than the call may take", async () => {
    const before = await front();
    let times: number[] = [];
    before.fault = (_request, response) =>
      times.push(Date.now()) === 1 ? refuse(response, 429, { "retry-after": "1" }) : undefined;
    const etude = await client({ url: before.url });
    await etude.decide(ASKED);
    assert.ok((times[1] as number) - (times[0] as number) >= 990);
    times = [];
    const error = await etude.decide(ASKED, { timeoutMs: 500 }).then(
      () => assert.fail(),
      (found: unknown) => found,
    );
    assert.ok(error instanceof RateLimited);
    assert.equal(error.retryAfterMs, 1000);
  });

  test("the limit of a key is a typed error", async () => {
    const etude = await client({ apiKey: await key("decide", "--rate", "1"), retries: 0 });
    const results = await Promise.allSettled(Array.from({ length: 20 }, () => etude.decide(ASKED)));
    const errors = results.flatMap((one) => (one.status === "rejected" ? [one.reason] : []));
    assert.ok(
      errors.length > 0 && errors.every((one) => one instanceof RateLimited && (one.retryAfterMs ?? 0) > 0),
    );
  });

  test("a decision that may have been made is asked for again only under a key", async () => {
    let dropped = 0;
    const before = await front({ drop: () => dropped++ === 0 });
    const etude = await client({ url: before.url });
    await assert.rejects(etude.decide(ASKED), ServerAway);
    assert.equal(before.requests.length, 1);
    dropped = 0;
    const given = await etude.decide(ASKED, { idempotencyKey: `k-${Date.now()}` });
    assert.equal(before.requests.length, 3);
    assert.ok(given.id);
  });

  test("errors of the server are tried again, then thrown", async () => {
    const before = await front();
    before.fault = (_request, response) => refuse(response, 500);
    const etude = await client({ url: before.url, retries: 2 });
    await assert.rejects(etude.jobs.list(), ServerFailed);
    assert.equal(before.requests.length, 3);
  });

  test("a server that does not answer is given up in time, or when the caller says so", async () => {
    const before = await front();
    before.fault = () => true; // and no answer
    const etude = await client({ url: before.url });
    const began = Date.now();
    await assert.rejects(etude.decide(ASKED, { timeoutMs: 150 }), TimedOut);
    const stop = new AbortController();
    const reason = new Error("enough");
    setTimeout(() => stop.abort(reason), 50);
    await assert.rejects(etude.jobs.list({}, { signal: stop.signal }), (thrown) => thrown === reason);
    await assert.rejects(etude.decide(ASKED, { signal: stop.signal }), (thrown) => thrown === reason);
    assert.ok(Date.now() - began < 5_000);
  });

  test("without a server a task has its defaults at once, and the log says why once", async () => {
    const logged: string[] = [];
    const etude = await client({
      url: `http://127.0.0.1:${await freePort()}`,
      decideTimeoutMs: 200,
      log: (text) => logged.push(text),
    });
    await assert.rejects(etude.decide(ASKED, { retries: 0 }), ServerAway);
    const began = Date.now();
    for (let i = 0; i < 20; i++) {
      const chosen = await etude.choose("model", "q", { options: MODELS, max_cost_usd: 0.001, default: "large" });
      assert.deepEqual(
        [chosen.name, chosen.propensity, chosen.policy, chosen.fallback],
        ["small", 1, "default", "away"],
      );
      await chosen.task.outcome({ success: true });
    }
    assert.ok(Date.now() - began < 8_000, `${Date.now() - began} ms`);
    assert.equal(logged.filter((text) => text.includes("the default was given")).length, 1);
    const [entry] = await etude.outbox.waiting();
    const [body] = [entry?.body as { decisions: { eligible: unknown; policy: string }[] }];
    assert.deepEqual([body?.decisions[0]?.policy, body?.decisions[0]?.eligible], ["default", [MODELS[0]]]);
  });

  test("a slow server costs no more than the time for a decision, and then none", async () => {
    const before = await front();
    const etude = await client({ url: before.url, decideTimeoutMs: 100, log: () => undefined });
    const options = { options: ["a", "b"], default: "b" } as const;
    assert.equal((await etude.choose("slow", "", options)).fallback, null);
    before.fault = () => true;
    const took: number[] = [];
    for (let i = 0; i < 6; i++) {
      const began = performance.now();
      const chosen = await etude.choose("slow", "", options);
      took.push(performance.now() - began);
      assert.equal(chosen.option, "b");
      assert.equal(chosen.fallback, i < 3 ? "slow" : "away");
    }
    assert.ok(
      took.slice(0, 3).every((ms) => ms >= 99 && ms < 1_000),
      took.join(),
    );
    assert.ok(
      took.slice(3).every((ms) => ms < 50),
      took.join(),
    );
  });
});

describe("reading and steering", { skip: WITHOUT_SERVER }, () => {
  test("jobs are submitted, listed page by page, shown and cancelled", async () => {
    const etude = await client();
    const made = [];
    for (let i = 0; i < 3; i++)
      made.push(await etude.jobs.submit({ problem: "choice", slot: "choice:model", priority: i }));
    const found: string[] = [];
    for await (const job of etude.jobs.all({ limit: 1 })) found.push(job.id);
    assert.ok(made.every((one) => found.includes(one.id)));
    const [first] = made;
    assert.equal((await etude.jobs.cancel(first?.id ?? "")).state, "cancelled");
    assert.equal((await etude.jobs.show(first?.id ?? "")).state, "cancelled");
    await assert.rejects(etude.jobs.cancel(first?.id ?? ""), Conflict);
  });

  test("policies, canaries and every other route", async () => {
    const etude = await client();
    assert.deepEqual((await etude.models.list()).rows, []);
    assert.deepEqual((await etude.canary.list()).rows, []);
    assert.deepEqual((await etude.experiments.list()).rows, []);
    await assert.rejects(etude.models.show("0".repeat(16)), NotFound);
    await assert.rejects(etude.models.rollback({ slot: "choice:model", reason: "a test" }), NotFound);
    await assert.rejects(etude.canary.start({ version: "0".repeat(16) }), NotFound);
    const { rows } = await etude.call("GET /v1/rewards", { query: { limit: 1 } });
    assert.equal(rows.length, 1);
    assert.equal((await etude.call("GET /health", {})).status, "ok");
  });

  test("events arrive as they happen, and a stream that breaks is continued", async (t) => {
    const before = await front();
    const etude = await client({ url: before.url });
    const stop = new AbortController();
    t.after(() => stop.abort());
    const seen: { id: number; state: string; job: string }[] = [];
    const listening = (async () => {
      for await (const event of etude.events({ after: 0, signal: stop.signal })) {
        if (event.kind === "job") seen.push({ id: event.id, state: `${event.job.state}`, job: event.job.id });
      }
    })();
    const job = await etude.jobs.submit({ problem: "choice", slot: "choice:model" });
    const saw = (state: string) => async () => seen.some((one) => one.job === job.id && one.state === state);
    await eventually(saw("queued"));
    const streams = () => before.requests.filter((one) => one.path.startsWith("/v1/events"));
    assert.equal(streams().length, 1);
    before.cut();
    await etude.jobs.cancel(job.id);
    await eventually(saw("cancelled"));
    assert.ok(streams().length >= 2);
    assert.match(streams().at(-1)?.path ?? "", /after=[1-9]/);
    assert.equal(new Set(seen.map((one) => one.id)).size, seen.length); // none twice
    stop.abort();
    await assert.rejects(listening, { name: "AbortError" });
    const other = await client({ apiKey: await key("decide") });
    await assert.rejects(other.events().next(), Forbidden);
  });

  test("a client without options reads the environment", async () => {
    const { url, apiKey } = await server();
    Object.assign(process.env, { ETUDE_URL: url, ETUDE_API_KEY: apiKey });
    const etude = new EtudeClient({ outbox: "memory" });
    assert.ok((await etude.decide(ASKED)).id);
    delete process.env["ETUDE_URL"];
    delete process.env["ETUDE_API_KEY"];
  });
});
