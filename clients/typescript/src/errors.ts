/**
 * Everything that this package throws on purpose. An aborted signal throws its own reason.
 *
 *     EtudeError
 *     ├── ConfigError        an option of the client is wrong
 *     ├── ServerAway         nothing answers at the URL
 *     ├── TimedOut           there was no answer in time
 *     ├── NotEtude           what answers is not a server of Etude
 *     ├── VersionMismatch    client and server are of versions that do not understand each other
 *     └── Refused            the server refused; `status`, `detail` and `requestId` are its own words
 *         ├── BadRequest     400, with the field
 *         ├── Unauthorized   401
 *         ├── Forbidden      403
 *         ├── NotFound       404
 *         ├── Conflict       409
 *         ├── TooLarge       413
 *         ├── RateLimited    429, with the time to wait
 *         └── ServerFailed   5xx
 */
import type { FieldError, Problem } from "./api.js";

export class EtudeError extends Error {
  override readonly name: string = "EtudeError";
}

export class ConfigError extends EtudeError {
  override readonly name = "ConfigError";
}

export class ServerAway extends EtudeError {
  override readonly name = "ServerAway";

  /** `neverSent`: whether the request certainly did not reach a server. */
  constructor(
    message: string,
    readonly neverSent: boolean,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

export class TimedOut extends EtudeError {
  override readonly name = "TimedOut";

  constructor(
    message: string,
    readonly timeoutMs: number,
  ) {
    super(message);
  }
}

export class NotEtude extends EtudeError {
  override readonly name = "NotEtude";
}

export class VersionMismatch extends EtudeError {
  override readonly name = "VersionMismatch";

  constructor(
    readonly client: string,
    readonly server: string,
  ) {
    super(
      `the server is Etude ${server}, and this is @etude/client ${client}, which may not understand it: ` +
        `run \`npm install @etude/client@${server.split(".").slice(0, 2).join(".")}\`, or upgrade the server`,
    );
  }
}

export class Refused extends EtudeError {
  override readonly name: string = "Refused";
  readonly status: number;
  /** What is wrong, and what to do, in the server's words. */
  readonly detail: string;
  /** Give this to whoever runs the server: its log has it. */
  readonly requestId: string;
  readonly fields: readonly FieldError[];
  /** Milliseconds to wait before the next try, where the server says so. */
  readonly retryAfterMs: number | null;

  constructor(problem: Problem, retryAfterMs: number | null = null) {
    super(`${problem.status} ${problem.title}: ${problem.detail}${inFields(problem)}`);
    this.status = problem.status;
    this.detail = problem.detail;
    this.requestId = problem.request_id ?? "";
    this.fields = problem.errors ?? [];
    this.retryAfterMs = retryAfterMs;
  }
}

export class BadRequest extends Refused {
  override readonly name = "BadRequest";

  /** The field that is wrong, such as `options` or `preferences.quality_weight`; empty if the server names none. */
  get field(): string {
    for (const { field, detail } of this.fields) {
      const path = /at `\$\.?([^`]*)`/.exec(detail)?.[1];
      const missing = /(?:required|unknown) field `([^`]+)`/.exec(detail)?.[1];
      if (path || missing) return [path, missing].filter(Boolean).join(".");
      if (field && field !== "body") return field;
    }
    return /^([a-z_]+(?:[.[][\w\].]*)?) (?:is|has|are)\b/.exec(this.detail)?.[1] ?? "";
  }
}

export class Unauthorized extends Refused {
  override readonly name = "Unauthorized";
}

export class Forbidden extends Refused {
  override readonly name = "Forbidden";
}

export class NotFound extends Refused {
  override readonly name = "NotFound";
}

export class Conflict extends Refused {
  override readonly name = "Conflict";
}

export class TooLarge extends Refused {
  override readonly name = "TooLarge";
}

export class RateLimited extends Refused {
  override readonly name = "RateLimited";
}

export class ServerFailed extends Refused {
  override readonly name = "ServerFailed";
}

const BY_STATUS: Record<number, new (problem: Problem, retryAfterMs: number | null) => Refused> = {
  400: BadRequest,
  401: Unauthorized,
  403: Forbidden,
  404: NotFound,
  409: Conflict,
  413: TooLarge,
  429: RateLimited,
};

/** The error of a refusal. */
export function refusal(problem: Problem, retryAfterMs: number | null): Refused {
  const kind = BY_STATUS[problem.status] ?? (problem.status >= 500 ? ServerFailed : Refused);
  return new kind(problem, retryAfterMs);
}

/** Which fields are wrong and why, as far as the detail does not say so. */
function inFields({ detail, errors }: Problem): string {
  const more = (errors ?? []).map((one) =>
    detail.includes(one.detail) ? (detail.includes(one.field) ? "" : one.field) : `${one.field}: ${one.detail}`,
  );
  const said = more.filter(Boolean).join("; ");
  return said && ` (${said})`;
}
