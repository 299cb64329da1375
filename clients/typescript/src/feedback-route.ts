/** Ratings from a page by way of its own server, which has the key: the page has none. */
import type { EtudeClient, Report } from "./client.js";
import { EtudeError, Refused } from "./errors.js";

const MAX_CHARS = 20_000;
const SIGNED = /^[\w.:@+-]{1,230}\.[0-9a-f]{20}$/;

export interface FeedbackRouteOptions {
  /** Who rates, by the session of the request: an id that has no meaning elsewhere. */
  user?: (request: Request) => string | undefined | Promise<string | undefined>;
}

/**
 * A handler of requests of `<etude-feedback>`, in the form that web servers share: a Request in, a Response out. It
 * passes ratings on and nothing else, and only under ids that the server signed: whoever guesses an id rates nothing.
 */
export function feedbackRoute(etude: EtudeClient, options: FeedbackRouteOptions = {}): (request: Request) => Promise<Response> {
  return async (request) => {
    if (request.method !== "POST") return answer(405, "expected POST");
    const text = await request.text();
    const given = text.length <= MAX_CHARS ? ratingIn(text) : null;
    if (given === null) return answer(400, "expected a rating: id, and thumbs, stars or comment");
    try {
      const user = await options.user?.(request);
      const stored = await etude.feedback(given.id, user === undefined ? given.rating : { ...given.rating, user }, { signal: request.signal });
      return Response.json({ rating: true, waiting: stored.waiting }, { status: 202 });
    } catch (error) {
      if (!(error instanceof EtudeError)) throw error;
      return error instanceof Refused && [400, 403, 409, 413, 429].includes(error.status) ? answer(error.status, error.detail) : answer(503, "try again later");
    }
  };
}

function ratingIn(text: string): { id: string; rating: Report } | null {
  try {
    const { id, thumbs, stars, comment } = JSON.parse(text) as Record<string, unknown>;
    const rating: Report = {};
    if (thumbs === "up" || thumbs === "down") rating.thumbs = thumbs;
    if (typeof stars === "number" && Number.isInteger(stars) && stars >= 1 && stars <= 5) rating.stars = stars;
    if (typeof comment === "string" && comment) rating.comment = comment;
    return typeof id === "string" && SIGNED.test(id) && Object.keys(rating).length ? { id, rating } : null;
  } catch {
    return null;
  }
}

function answer(status: number, detail: string): Response {
  const headers = { "content-type": "application/problem+json" };
  return new Response(JSON.stringify({ title: "Refused", status, detail }), { status, headers });
}
