/** Keeps decisions from a server that failed some times in a row: after a pause one decision tries it again. */
const FAILURES = 3;
const FIRST_PAUSE_MS = 1_000;
const MAX_PAUSE_MS = 30_000;

export class Breaker {
  /** Whether no decision was answered yet. */
  isNew = true;
  private failures = 0;
  private closedUntil = 0;

  admits(): boolean {
    if (this.failures < FAILURES) return true;
    if (performance.now() < this.closedUntil) return false;
    this.pause(); // others wait for the one that tries
    return true;
  }

  succeeded(): void {
    this.failures = 0;
    this.isNew = false;
  }

  failed(): void {
    this.failures++;
    if (this.failures >= FAILURES) this.pause();
  }

  private pause(): void {
    this.closedUntil = performance.now() + Math.min(FIRST_PAUSE_MS * 2 ** (this.failures - FAILURES), MAX_PAUSE_MS);
  }
}
