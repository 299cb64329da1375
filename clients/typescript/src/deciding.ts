/** Decisions of a task: the policy's, or the default option where the server does not answer in time. */
import type { DecisionAsked, DecisionGiven, LoggedDecision } from "./api.js";
import { Breaker } from "./breaker.js";
import type { Call, Connection } from "./connection.js";
import { BadRequest, EtudeError, Forbidden, NotEtude, Refused, TimedOut, Unauthorized, VersionMismatch } from "./errors.js";
import type { Offer, Option } from "./offer.js";

/** A decision, with its log entries. */
export type Decided = Omit<DecisionGiven, "id"> & { id: string | null; logged: LoggedDecision[] };

/** Milliseconds that the first decision of a process may take longer, for the connection. */
const FIRST_MS = 1_000;
/** Share of the time that the server has; the rest is for the way there and back. */
const SHARE = 0.8;
/** Milliseconds that a decision without a default may take, the loading of its policy included. */
const PLAN_TIMEOUT_MS = 25_000;
const DEFAULT = "default";

export class Deciding {
  private readonly breaker = new Breaker();
  private readonly warned = new Set<string>();
  private isKeyRefused = false;

  constructor(
    private readonly connection: Connection,
    private readonly timeoutMs: number,
    private readonly log: (message: string) => void,
  ) {}

  /** A choice, which always has an answer; a request that is wrong throws, and so does, once, a key that is not accepted. */
  async choose<T extends Option>(asked: DecisionAsked, offer: Offer<T>, call: Call): Promise<Decided> {
    const timeoutMs = (call.timeoutMs ?? this.timeoutMs) + (this.breaker.isNew ? FIRST_MS : 0);
    try {
      const given = await this.answered(asked, timeoutMs, call.signal);
      if (offer.named(given.action) !== undefined) return given;
      throw new NotEtude(`the answer is ${JSON.stringify(given.action)}, which was not offered`);
    } catch (error) {
      if (call.signal?.aborted || error instanceof BadRequest || !(error instanceof EtudeError)) throw error;
      if (!this.isKeyRefused && (error instanceof Unauthorized || error instanceof Forbidden)) {
        this.isKeyRefused = true; // whoever set it should see it; the agent goes on
        throw error;
      }
      return this.usual(asked, offer, error);
    }
  }

  /** A decision of a problem without a default. */
  async ask(asked: DecisionAsked, signal?: AbortSignal): Promise<Decided> {
    return await this.answered(asked, PLAN_TIMEOUT_MS, signal);
  }

  private async answered(asked: DecisionAsked, timeoutMs: number, signal: AbortSignal | undefined): Promise<Decided> {
    if (!this.breaker.admits()) throw new ServerPaused("it failed several times, and is tried again in some seconds");
    const body = { ...asked, timeout_ms: SHARE * timeoutMs };
    try {
      // A second decision that the server may have logged is replaced when the whole task arrives.
      const given = await this.connection.ask<DecisionGiven>("POST", "/v1/decisions", { body, timeoutMs, signal, repeatable: true });
      this.breaker.succeeded();
      return { ...given, logged: given.logged ?? [] };
    } catch (error) {
      if (error instanceof Refused && error.status < 500 && error.status !== 429) {
        if (!(error instanceof Unauthorized || error instanceof Forbidden)) this.breaker.succeeded();
      } else if (!signal?.aborted) {
        this.breaker.failed();
      }
      throw error;
    }
  }

  /** The default option, logged as made by the policy `default`: no other policy is judged by it. */
  private usual<T extends Option>(asked: DecisionAsked, offer: Offer<T>, error: EtudeError): Decided {
    const fallback = reasonOf(error);
    const what = `${asked.problem} ${fallback}`;
    if (!this.warned.has(what)) this.log(`etude: ${asked.problem}: the default was given: ${error.message}`);
    this.warned.add(what);
    const made = { problem: asked.problem, action: offer.usual, propensity: 1, policy: DEFAULT };
    const logged = [{ ...made, at_ms: asked.at_ms ?? 0, context: asked.context, eligible: [...offer.eligible.values()] }];
    return { ...made, id: null, fallback, logged };
  }
}

/** The server is not asked for a while. */
class ServerPaused extends EtudeError {
  override readonly name = "ServerPaused";
}

function reasonOf(error: EtudeError): string {
  if (error instanceof TimedOut) return "slow";
  if (error instanceof VersionMismatch) return "version";
  if (error instanceof Unauthorized || error instanceof Forbidden) return "key";
  if (error instanceof NotEtude) return "broken";
  return error instanceof Refused && error.status < 500 && error.status !== 429 ? "refused" : "away";
}
