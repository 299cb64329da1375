// The part of typescript_latency.py that runs in Node: decisions one by one and at a rate, by the client and without it.
// node typescript_latency.mjs URL KEY BODIES.json REQUESTS SECONDS PER_S
import { readFileSync } from "node:fs";
import { Agent, request } from "node:http";
import { EtudeClient } from "../clients/typescript/dist/index.js";

const [url, apiKey, file, requests, seconds, perSecond] = process.argv.slice(2);
const bodies = JSON.parse(readFileSync(file, "utf8"));
const etude = new EtudeClient({ url, apiKey, outbox: "memory", decideTimeoutMs: 10_000, log: fail });
const agent = new Agent({ keepAlive: true });
const headers = { authorization: `Bearer ${apiKey}`, "content-type": "application/json" };

function fail(message) {
  throw new Error(message);
}

/** One request without the client: what Node and the server take. */
function bare(body) {
  return new Promise((resolve, reject) => {
    const sent = request(`${url}/v1/decisions`, { method: "POST", agent, headers }, (answer) => {
      let text = "";
      answer.setEncoding("utf8");
      answer.on("data", (part) => (text += part));
      answer.on("end", () => (answer.statusCode === 200 ? resolve(JSON.parse(text)) : reject(new Error(text))));
    });
    sent.on("error", reject);
    sent.end(JSON.stringify(body));
  });
}

const ways = {
  decide: async (body) => {
    if ((await etude.decide(body)).fallback) fail("a fallback decided");
  },
  task: async (body) => {
    const chosen = await etude.openTask("a task").decide(body.problem, body.context, { options: body.options });
    if (chosen.fallback) fail(`a fallback decided: ${chosen.fallback}`);
  },
  bare,
};

async function oneByOne(ask, count) {
  const took = [];
  for (let i = 0; i < count; i++) {
    const began = performance.now();
    await ask(bodies[i % bodies.length]);
    took.push(performance.now() - began);
  }
  return took;
}

/** From when each request was due, whether or not those before it are answered. */
async function atRate(ask, count, rate) {
  const began = performance.now();
  const took = [];
  const asked = [];
  for (let i = 0; i < count; i++) {
    const due = began + (i * 1000) / rate;
    for (let left = due - performance.now(); left > 0; left = due - performance.now()) {
      // Timers of Node are whole milliseconds late: the last two are waited for by looking, and letting others run.
      await new Promise((go) => (left > 2 ? setTimeout(go, left - 2) : setImmediate(go)));
    }
    asked.push(ask(bodies[i % bodies.length]).then(() => took.push(performance.now() - due)));
  }
  await Promise.all(asked);
  return took;
}

const found = {};
for (const ask of Object.values(ways)) await oneByOne(ask, 300); // warm
for (const [way, ask] of Object.entries(ways)) {
  const one_by_one = await oneByOne(ask, Number(requests));
  found[way] = { one_by_one, at_rate: await atRate(ask, Number(seconds) * Number(perSecond), Number(perSecond)) };
}
await new Promise((written) => process.stdout.write(JSON.stringify(found), written));
process.exit(0); // keep-alive connections would keep it
