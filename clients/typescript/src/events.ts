/** The stream of what happens, as server-sent events: continued where it ended, until the caller has enough. */
import type { Entry, Job, Notice, Operation } from "./api.js";
import { type Connection, sleep, waitBefore } from "./connection.js";
import { Refused, ServerAway, ServerFailed, RateLimited, TimedOut } from "./errors.js";

interface Numbered {
  /** Number of the event: `after` continues with the next one. */
  id: number;
}

/** What happened. `gap` says that events are missing: read the lists again. */
export type EtudeEvent = Numbered &
  (
    | { kind: "job"; job: Job }
    | { kind: "release"; slot: string; step: Entry }
    | { kind: "notice"; notice: Notice }
    | { kind: "operation"; operation: Operation }
    | { kind: "gap"; detail: string }
  );

export interface EventsOptions {
  /** Number of an event: those after it; 0 is the last week. Without it, what happens from now on. */
  after?: number;
  signal?: AbortSignal;
}

/** Silence after which a stream is taken for dead: the server says something every 15 seconds. */
const SILENCE_MS = 45_000;

export async function* follow(connection: Connection, options: EventsOptions): AsyncGenerator<EtudeEvent, void, void> {
  let after = options.after;
  for (let failed = 0; ; failed++) {
    const silence = silenceLimit(options.signal);
    try {
      const headers: Record<string, string> = { accept: "text/event-stream" };
      const response = await connection.open("/v1/events", { after: after ?? null }, headers, silence.signal);
      for await (const event of eventsIn(response, silence.heard)) {
        failed = 0;
        after = event.id;
        yield event;
      }
      await sleep(waitBefore(null, failed), options.signal);
    } catch (error) {
      if (options.signal?.aborted) throw options.signal.reason;
      if (!isPassing(error)) throw error;
      await sleep(waitBefore(error, failed), options.signal);
    } finally {
      silence.end(); // also when the caller leaves the loop
    }
  }
}

function isPassing(error: unknown): boolean {
  const isRefused = error instanceof Refused && !(error instanceof ServerFailed || error instanceof RateLimited);
  return !isRefused && (error instanceof Refused || error instanceof ServerAway || error instanceof TimedOut || error instanceof TypeError);
}

async function* eventsIn(response: Response, heard: () => void): AsyncGenerator<EtudeEvent> {
  if (response.body === null) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard();
      text = (text + value).replaceAll("\r\n", "\n");
      const parts = text.split("\n\n");
      text = parts.pop() ?? "";
      for (const part of parts) {
        const event = parsed(part);
        if (event) yield event;
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

/** An event; null for a comment, and for kinds that a later server may have. */
function parsed(part: string): EtudeEvent | null {
  const lines = part.split("\n").map((line) => /^(\w+): ?(.*)$/.exec(line));
  const field = (name: string) => lines.filter((line) => line?.[1] === name).map((line) => line?.[2]);
  const [id] = field("id");
  const [kind] = field("event");
  if (!id || !kind) return null;
  const body = JSON.parse(field("data").join("\n")) as Record<string, unknown>;
  const event = kind === "notice" || kind === "operation" ? { [kind]: body } : body;
  return ["job", "release", "notice", "operation", "gap"].includes(kind)
    ? ({ ...event, id: Number(id), kind } as unknown as EtudeEvent)
    : null;
}

function silenceLimit(signal: AbortSignal | undefined): { signal: AbortSignal; heard: () => void; end: () => void } {
  const limit = new AbortController();
  const stop = () => limit.abort(signal?.reason);
  const late = () => limit.abort(new TimedOut(`nothing came for ${SILENCE_MS} ms`, SILENCE_MS));
  let timer = setTimeout(late, SILENCE_MS);
  if (signal?.aborted) stop();
  signal?.addEventListener("abort", stop, { once: true });
  return {
    signal: limit.signal,
    heard() {
      clearTimeout(timer);
      timer = setTimeout(late, SILENCE_MS);
    },
    end() {
      clearTimeout(timer);
      signal?.removeEventListener("abort", stop);
      limit.abort();
    },
  };
}
