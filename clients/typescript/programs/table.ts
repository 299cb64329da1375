/** What the programs print. */

/** A bar of so many characters, for a share from 0 to 1. */
export function bar(share: number, width = 24): string {
  const full = Math.round(Math.min(1, Math.max(0, share)) * width);
  return "█".repeat(full) + "░".repeat(width - full);
}

/** Mean, with its 95 % interval. */
export function interval(values: readonly number[]): { mean: number; half: number } {
  const mean = values.reduce((sum, one) => sum + one, 0) / values.length;
  const variance = values.reduce((sum, one) => sum + (one - mean) ** 2, 0) / Math.max(1, values.length - 1);
  return { mean, half: 1.96 * Math.sqrt(variance / values.length) };
}

/** Progress on one line of a terminal, or now and then on a line of its own. */
export function progress(text: string, isLast: boolean, isDue: boolean): void {
  if (process.stdout.isTTY) process.stdout.write(`\r\x1b[K${text}${isLast ? "\n" : ""}`);
  else if (isLast || isDue) console.log(text);
}
