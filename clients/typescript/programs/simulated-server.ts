/** A server with the routes of prompt training alone, and the small learner in place of Etude's: for `npm run simulated`. */
import { type IncomingMessage, type Server, createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { Learner, type Step, embed } from "./learner.js";
import { MUTATIONS, type Mutation, type PromptWorld } from "./world.js";

const MIN_STEPS = 16;

type Body = Record<string, unknown>;

export class SimulatedServer {
  private readonly learner: Learner;
  private readonly versions = new Map<string, ReturnType<Learner["snapshot"]>>();
  private buffer: Step[] = [];
  private server: Server | undefined;

  constructor(
    private readonly world: PromptWorld,
    random: () => number,
  ) {
    this.learner = new Learner(MUTATIONS.length, random);
  }

  /** Listen on a free port; its URL. */
  async start(): Promise<string> {
    this.server = createServer(async (request, response) => {
      const [status, body] = await this.answer(request).catch((error: unknown): [number, Body] => [400, problem(400, String(error))]);
      const type = status < 300 ? "application/json" : "application/problem+json";
      response.writeHead(status, { "content-type": type }).end(JSON.stringify(body));
    });
    await new Promise<void>((resolve) => this.server?.listen(0, "127.0.0.1", resolve));
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  stop(): void {
    this.server?.close();
    this.server?.closeAllConnections();
  }

  private async answer(request: IncomingMessage): Promise<[number, Body]> {
    let text = "";
    for await (const part of request) text += String(part);
    const body = (text ? JSON.parse(text) : {}) as Body;
    switch (`${request.method} ${request.url}`) {
      case "GET /health":
        return [200, { status: "ok" }];
      case "GET /stats":
        return [200, { buffer_size: this.buffer.length, versions: this.versions.size }];
      case "POST /select_action":
        return [200, this.select(body)];
      case "POST /store_experience":
        return [200, this.store(body)];
      case "POST /update":
        return [200, this.update()];
      case "POST /get_distribution":
        return [200, { probabilities: named(this.learner.probabilities(stateOf(body))) }];
      case "POST /save":
        return [200, this.save()];
      case "POST /load":
        return this.load(String(body["version"]));
      default:
        return [404, problem(404, `there is no route ${request.url}`)];
    }
  }

  private select(body: Body): Body {
    const state = stateOf(body);
    const { action, logProb, probabilities } = this.learner.act(state, body["greedy"] === true);
    const mutation = MUTATIONS[action] as Mutation;
    const made = typeof body["prompt"] === "string" ? { prompt: this.world.step(body["prompt"], mutation).prompt } : {};
    const propensity = probabilities[action];
    return { action, mutation, log_prob: logProb, value: this.learner.value(state), propensity, probabilities: named(probabilities), ...made };
  }

  private store(body: Body): Body {
    const { action, reward, log_prob } = body as { action: number; reward: number; log_prob?: number };
    const state = stateOf(body);
    const logProb = log_prob ?? Math.log(this.learner.probabilities(state)[action] as number);
    this.buffer.push({ state, action, reward, logProb });
    return { stored: true, buffer_size: this.buffer.length };
  }

  private update(): Body {
    const isEnough = this.buffer.length >= MIN_STEPS;
    const found = isEnough ? this.learner.update(this.buffer) : null;
    if (isEnough) this.buffer = [];
    return {
      updated: isEnough,
      policy_loss: found?.policyLoss ?? null,
      value_loss: found?.valueLoss ?? null,
      entropy: found?.entropy ?? null,
      approx_kl: found?.approxKl ?? null,
      clip_fraction: found?.clipFraction ?? null,
      epochs: isEnough ? 4 : 0,
      buffer_size: this.buffer.length,
    };
  }

  private save(): Body {
    const version = `simulated-${this.versions.size + 1}`;
    this.versions.set(version, this.learner.snapshot());
    return { version };
  }

  private load(version: string): [number, Body] {
    const saved = this.versions.get(version);
    if (!saved) return [404, problem(404, `there is no version '${version}'`)];
    this.learner.restore(saved);
    return [200, { loaded: true, version }];
  }
}

function stateOf(body: Body): readonly number[] {
  if (typeof body["prompt"] === "string") return embed(body["prompt"]);
  if (Array.isArray(body["embedding"])) return body["embedding"] as number[];
  throw new Error("give embedding or prompt");
}

function named(probabilities: readonly number[]): Record<string, number> {
  return Object.fromEntries(MUTATIONS.map((mutation, i) => [mutation, probabilities[i] ?? 0]));
}

function problem(status: number, detail: string): Body {
  return { title: "Refused", status, detail };
}
