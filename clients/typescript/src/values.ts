/** Ids, and values of any kind as JSON. */

const MAX_DEPTH = 90;

/** A unique id that sorts by time. */
export function newId(kind: string): string {
  const random = crypto.getRandomValues(new Uint8Array(6));
  const digits = Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return `${kind}-${(Date.now() * 1000).toString(16).padStart(14, "0")}-${digits}`;
}

/** A copy in the types of JSON, of any value: later changes have no effect, and nothing in it can fail to be sent. */
export function snapshot(value: unknown): unknown {
  return copied(value, []);
}

function copied(value: unknown, within: readonly object[]): unknown {
  switch (typeof value) {
    case "string":
      return wellFormed(value);
    case "number":
      return Number.isFinite(value) ? value : null;
    case "boolean":
      return value;
    case "bigint":
      return value.toString();
    case "object":
      return value === null ? null : ofObject(value, within);
    default:
      return null;
  }
}

function ofObject(value: object, within: readonly object[]): unknown {
  if (within.includes(value)) return "<itself>";
  if (within.length >= MAX_DEPTH) return "<too deep>";
  const inside = [...within, value];
  try {
    if (value instanceof Error) return wellFormed(`${value.name}: ${value.message}`);
    if (value instanceof Date) return Number.isNaN(value.getTime()) ? null : value.toISOString();
    if ("toJSON" in value && typeof value.toJSON === "function") return copied(value.toJSON(), inside);
    if (value instanceof Map) return copied(Object.fromEntries(value), inside);
    if (Array.isArray(value) || value instanceof Set) return Array.from(value, (one) => copied(one, inside));
    if (ArrayBuffer.isView(value)) return "length" in value ? Array.from(value as Uint8Array, Number) : "<bytes>";
    const entries = Object.entries(value).filter(([, one]) => one !== undefined && typeof one !== "function");
    return Object.fromEntries(entries.map(([name, one]) => [wellFormed(name), copied(one, inside)]));
  } catch {
    return "<unreadable>"; // such as a property that throws
  }
}

/** A text without halves of characters, which no UTF-8 has. */
function wellFormed(text: string): string {
  return text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
}
