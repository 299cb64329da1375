/** The options of a choice: which may be chosen, and the default where the policy does not answer. */
import type { Preferences } from "./api.js";
import { BadRequest } from "./errors.js";

/** A name, or an object with a `name` and as far as they are known a `description`, numbers and words. */
export type Option = string | number | boolean | { readonly name: string | number; readonly [more: string]: unknown };

const DECLARED = [
  ["max_cost_usd", ["cost_usd", "usd_per_call"]],
  ["max_latency_ms", ["latency_ms"]],
] as const;
const ROUNDING = 1e-6;

/** The name by which an option is logged. */
export function optionName(option: unknown): string {
  const name = typeof option === "object" && option !== null ? (option as { name?: unknown }).name : option;
  return typeof name === "string" ? name.trim() : typeof name === "number" || typeof name === "boolean" ? `${name}` : "";
}

export class Offer<T extends Option> {
  /** The options that the preferences do not rule out by what they say of themselves, by name. */
  readonly eligible: ReadonlyMap<string, T>;
  /** What is chosen if the policy does not answer. */
  readonly usual: string;
  private readonly byName: ReadonlyMap<string, T>;

  /** BadRequest if there is nothing to choose. */
  constructor(options: readonly T[], preferences: Preferences, usual: Option | null | undefined) {
    if (!Array.isArray(options) || options.length === 0) {
      throw wrong("options", `options is ${JSON.stringify(options)}: expected a list of at least one option`);
    }
    const byName = new Map<string, T>();
    options.forEach((option, place) => {
      const name = optionName(option);
      if (!name) throw wrong(`options[${place}]`, "it has no name: expected a text, or an object with `name`");
      if (byName.has(name)) throw wrong(`options[${place}]`, `a second option is named '${name}': give each its own name`);
      byName.set(name, option);
    });
    this.byName = byName;
    this.eligible = new Map([...byName].filter(([name, option]) => mayBe(name, option, preferences)));
    const [first] = this.eligible.keys();
    if (first === undefined) {
      throw wrong("preferences", `none of the ${options.length} options may be chosen: offer another, or ask for less`);
    }
    const wanted = usual === null || usual === undefined ? first : optionName(usual);
    if (!byName.has(wanted)) throw wrong("default", `'${wanted}' is not among the options ${[...byName.keys()].join(", ")}`);
    this.usual = this.eligible.has(wanted) ? wanted : first;
  }

  /** The option, as it was offered, that an answer names. */
  named(action: unknown): T | undefined {
    return this.byName.get(optionName(action));
  }
}

function mayBe(name: string, option: Option, wanted: Preferences): boolean {
  if (wanted.allowed && !wanted.allowed.includes(name)) return false;
  if (typeof option !== "object") return true;
  if (option["available"] === false || option["available"] === 0) return false;
  const regions = option["regions"] ?? option["region"];
  if (wanted.region != null && regions !== undefined && ![regions].flat().includes(wanted.region)) return false;
  return DECLARED.every(([limit, numbers]) => {
    const most = wanted[limit];
    return most == null || numbers.every((key) => !(Number(option[key]) > most * (1 + ROUNDING)));
  });
}

/** The error of an argument that is wrong, as the server would say it. */
export function wrong(field: string, detail: string): BadRequest {
  return new BadRequest({ title: "Bad Request", status: 400, detail, type: "about:blank", errors: [{ field, detail }] });
}
