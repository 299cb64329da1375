/** Requests to the server, with a limit of time, retries where they do no harm, and typed errors. */
import type { Problem } from "./api.js";
import {
  ConfigError,
  EtudeError,
  NotEtude,
  Refused,
  ServerAway,
  TimedOut,
  VersionMismatch,
  refusal,
} from "./errors.js";
import { VERSION, understands } from "./version.js";

/** Options of one call. */
export interface Call {
  /** Ends the call; it throws the signal's reason. */
  signal?: AbortSignal | undefined;
  /** Milliseconds for the whole call, retries included. */
  timeoutMs?: number | undefined;
  /** Number of further tries after one that failed. */
  retries?: number | undefined;
  /** A POST that is sent again under the same key within a day gets the first answer, and has no other effect. */
  idempotencyKey?: string | undefined;
}

export type Query = Record<string, string | number | null | undefined>;

export interface Asked extends Call {
  query?: Query | undefined;
  body?: unknown;
  /** Whether a second request does no harm although the first one may have arrived. */
  repeatable?: boolean | undefined;
  /** Whether the request goes on when the page is left. */
  keepalive?: boolean | undefined;
}

export interface ConnectionOptions {
  url: string;
  apiKey: string | undefined;
  timeoutMs: number;
  retries: number;
  fetch: typeof globalThis.fetch;
  anyVersion: boolean;
}

const FIRST_WAIT_MS = 100;
const MAX_WAIT_MS = 5_000;
/** Codes of Node for connections that were never made. */
const NEVER_SENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "UND_ERR_CONNECT_TIMEOUT"]);

export class Connection {
  readonly url: string;

  constructor(private readonly options: ConnectionOptions) {
    this.url = checkedUrl(options.url);
    const key = options.apiKey;
    if (key !== undefined && !/^[\x21-\x7e]+$/.test(key)) {
      const what = key === "" ? "is empty" : "has characters that no API key has";
      throw new ConfigError(`apiKey ${what}: give it as \`etude keys create\` printed it`);
    }
  }

  /** The answer of a route. A POST without an idempotency key is sent again only if the first one had no effect. */
  async ask<T>(method: "GET" | "POST", path: string, asked: Asked = {}): Promise<T> {
    const { timeoutMs = this.options.timeoutMs, retries = this.options.retries } = asked;
    const limit = limited(timeoutMs, asked.signal, this.url);
    const until = Date.now() + timeoutMs;
    const mayRepeat = method === "GET" || asked.idempotencyKey !== undefined || asked.repeatable === true;
    try {
      for (let failed = 0; ; failed++) {
        try {
          return await this.once<T>(method, path, asked, limit.signal);
        } catch (error) {
          const waitMs = waitBefore(error, failed);
          const isOver = failed >= retries || Date.now() + waitMs >= until || limit.signal.aborted;
          if (isOver || !isWorthRepeating(error, mayRepeat)) throw error;
          await sleep(waitMs, limit.signal);
        }
      }
    } finally {
      limit.end();
    }
  }

  /** A response whose body is read by the caller, such as a stream. */
  async open(path: string, query: Query, headers: Record<string, string>, signal: AbortSignal): Promise<Response> {
    return await this.fetch(path, query, { headers: this.headers(headers), signal });
  }

  private async once<T>(method: string, path: string, asked: Asked, signal: AbortSignal): Promise<T> {
    const headers = this.headers({ accept: "application/json" });
    if (asked.idempotencyKey !== undefined) headers["idempotency-key"] = asked.idempotencyKey;
    const init: RequestInit & { signal: AbortSignal } = { method, headers, signal };
    if (asked.body !== undefined) {
      headers["content-type"] = "application/json";
      init.body = JSON.stringify(asked.body);
    }
    if (asked.keepalive) init.keepalive = true;
    const response = await this.fetch(path, asked.query ?? {}, init);
    const text = await this.reading(response.text(), signal);
    try {
      return JSON.parse(text) as T;
    } catch {
      throw this.notEtude(response.status);
    }
  }

  /** A response that is no refusal. */
  private async fetch(path: string, query: Query, init: RequestInit & { signal: AbortSignal }): Promise<Response> {
    const url = this.url + path + inUrl(query);
    const response = await this.reading(this.options.fetch(url, { ...init, redirect: "error" }), init.signal);
    const version = response.headers.get("etude-version");
    if (version !== null && !this.options.anyVersion && !understands(VERSION, version)) {
      void response.body?.cancel().catch(() => undefined);
      throw new VersionMismatch(VERSION, version);
    }
    if (response.ok) return response;
    const text = await this.reading(response.text(), init.signal);
    throw refusal(this.problemIn(response, text), retryAfter(response));
  }

  private headers(more: Record<string, string>): Record<string, string> {
    const key = this.options.apiKey;
    return key === undefined ? more : { authorization: `Bearer ${key}`, ...more };
  }

  /** A promise of fetch, with errors of this package. */
  private async reading<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
    try {
      return await promise;
    } catch (error) {
      if (signal.aborted) throw signal.reason;
      if (error instanceof EtudeError) throw error;
      const cause = (error as { cause?: { code?: string; message?: string } }).cause;
      const text = cause?.message || cause?.code || (error instanceof Error ? error.message : String(error));
      const hint = "start `etude serve` there, or correct url";
      throw new ServerAway(`${this.url} does not answer (${text}): ${hint}`, NEVER_SENT.has(cause?.code ?? ""), {
        cause: error,
      });
    }
  }

  private problemIn(response: Response, text: string): Problem {
    if (response.headers.get("content-type")?.startsWith("application/problem+json")) {
      try {
        const found = JSON.parse(text) as Problem;
        if (typeof found.detail === "string") return { ...found, status: response.status };
      } catch {
        // Not a problem detail in spite of its type.
      }
    }
    if (response.status < 500 && response.status !== 429) throw this.notEtude(response.status);
    // Gateways answer for a server that is away.
    return {
      title: response.statusText || "Refused",
      status: response.status,
      detail: `${this.url} is not available`,
    };
  }

  private notEtude(status: number): NotEtude {
    return new NotEtude(`status ${status} of ${this.url} is not from Etude: does url name \`etude serve\`?`);
  }
}

/** Waits; throws the signal's reason if it is aborted before. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Waiting time before a try: exponential, with full jitter, at least what the server asks for. */
export function waitBefore(error: unknown, failed: number): number {
  const jittered = Math.random() * Math.min(MAX_WAIT_MS, FIRST_WAIT_MS * 2 ** failed);
  return Math.max(jittered, (error instanceof Refused && error.retryAfterMs) || 0);
}

function isWorthRepeating(error: unknown, mayRepeat: boolean): boolean {
  if (error instanceof ServerAway) return mayRepeat || error.neverSent;
  if (!(error instanceof Refused)) return false;
  if (error.status === 429 || error.status === 503) return true; // it was refused before it had an effect
  return mayRepeat && (error.status === 408 || error.status >= 500);
}

function limited(ms: number, signal: AbortSignal | undefined, url: string): { signal: AbortSignal; end: () => void } {
  const limit = new AbortController();
  const stop = () => limit.abort(signal?.reason);
  const timer = setTimeout(() => limit.abort(new TimedOut(`${url} did not answer within ${ms} ms`, ms)), ms);
  if (signal?.aborted) stop();
  signal?.addEventListener("abort", stop, { once: true });
  const end = () => {
    clearTimeout(timer);
    signal?.removeEventListener("abort", stop);
  };
  return { signal: limit.signal, end };
}

function retryAfter(response: Response): number | null {
  const given = response.headers.get("retry-after");
  if (given === null) return null;
  const ms = /^\d+$/.test(given) ? Number(given) * 1000 : Date.parse(given) - Date.now();
  return Number.isFinite(ms) ? Math.max(0, ms) : null;
}

function inUrl(query: Query): string {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  return given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
}

/** A URL, or a path of the page's own server, without what follows it. */
function checkedUrl(given: string): string {
  const found = given.replace(/\/+$/, "").replace(/\/v1$/, "");
  const isPath = /^(\/|$)/.test(found) && !found.startsWith("//") && typeof document !== "undefined";
  if (!isPath && !(/^https?:\/\/[^/?#\s]+/i.test(found) && URL.canParse(found))) {
    throw new ConfigError(`url is ${JSON.stringify(given)}: expected one such as http://127.0.0.1:8765`);
  }
  if (/[?#]/.test(found) || /\/\/[^/]*@/.test(found)) {
    throw new ConfigError("url has a query, a fragment or a password: give an API key as apiKey");
  }
  return found;
}
