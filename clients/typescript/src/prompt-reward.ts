/**
 * A rough reward for prompts, by rules: for a first try. It sees form alone, and a policy that is trained on it learns
 * form alone: give the reward that you care about, such as the judgement of what the prompt's answers are worth.
 */

const ASPECTS: readonly ((prompt: string) => number)[] = [
  (prompt) => Math.min(1, words(prompt) / 30), // says enough
  (prompt) => found(prompt, /\b(must|only|at most|at least|exactly|no more than|do not|never)\b/gi, 2), // limits
  (prompt) => found(prompt, /^\s*(\d+[.)]|[-*•])\s/gm, 3), // steps or points
  (prompt) => found(prompt, /\b(if|when|unless)\b[^.\n]*\b(fails?|cannot|can't|missing|unclear|error|invalid)\b/gi, 1), // what may go wrong
  (prompt) => Math.min(1, 250 / Math.max(1, words(prompt))), // and not too much
];

/** The score after a mutation less the one before it, from -1 to 1. */
export function promptReward(before: string, after: string): number {
  return promptScore(after) - promptScore(before);
}

/** From 0 to 1. */
export function promptScore(prompt: string): number {
  return ASPECTS.reduce((sum, aspect) => sum + aspect(prompt), 0) / ASPECTS.length;
}

function words(prompt: string): number {
  return prompt.split(/\s+/).filter(Boolean).length;
}

function found(prompt: string, pattern: RegExp, enough: number): number {
  return Math.min(1, [...prompt.matchAll(pattern)].length / enough);
}
