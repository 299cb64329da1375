/** The outbox as a folder: one file per entry, whole or not there. Processes may share it; one sends at a time. */
import { link, mkdir, open, readFile, readdir, rename, stat, unlink, utimes, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import type { Entry, RefusedEntry, Store, Waiting } from "../outbox.js";

const REFUSED = "refused";
const LOCK = "sending.lock";
const BEAT_MS = 5_000;
/** Age at which a lock is free again: the process that holds it beats every five seconds. */
const STALE_MS = 30_000;

export class FolderStore implements Store {
  private readonly folder: string;
  private count = 0;

  constructor(folder: string) {
    this.folder = resolve(folder); // also when the process changes its folder
  }

  async add(entry: Entry): Promise<string> {
    await mkdir(join(this.folder, REFUSED), { recursive: true, mode: 0o700 });
    const order = `${Date.now().toString().padStart(15, "0")}-${(this.count++).toString().padStart(8, "0")}`;
    const name = `${order}-${process.pid}-${entry.id.replace(/[^\w-]/g, "_").slice(-60)}.json`;
    await this.write(join(this.folder, name), entry);
    return name;
  }

  async list(limit: number): Promise<Waiting[]> {
    const names = (await this.names(this.folder)).slice(0, limit);
    const found = await Promise.all(names.map((name) => this.read(name)));
    return found.filter((one) => one !== null);
  }

  async remove(name: string): Promise<void> {
    await unlink(join(this.folder, name)).catch(ignoreMissing);
  }

  async discard(name: string): Promise<void> {
    await unlink(join(this.folder, REFUSED, name)).catch(ignoreMissing);
  }

  async refuse(name: string, reason: string): Promise<void> {
    const { entry } = (await this.read(name)) ?? {};
    if (entry) await this.write(join(this.folder, REFUSED, name), { ...entry, reason });
    await this.remove(name);
  }

  async refused(): Promise<RefusedEntry[]> {
    const folder = join(this.folder, REFUSED);
    const found = (await this.names(folder)).map(async (name) => {
      const { reason, ...entry } = JSON.parse(await readFile(join(folder, name), "utf8")) as Entry & {
        reason: string;
      };
      return { name, entry, reason };
    });
    return await Promise.all(found);
  }

  async restore(name: string): Promise<void> {
    const path = join(this.folder, REFUSED, name);
    const { reason: _, ...entry } = JSON.parse(await readFile(path, "utf8")) as Entry & { reason: string };
    await this.write(join(this.folder, name), entry);
    await unlink(path);
  }

  async lock(): Promise<(() => Promise<void>) | null> {
    const path = join(this.folder, LOCK);
    const own = `${process.pid} ${Math.random()}`;
    await mkdir(this.folder, { recursive: true, mode: 0o700 });
    if (!(await taken(path, own)) && !((await isStale(path)) && (await taken(path, own)))) return null;
    const beat = setInterval(() => void utimes(path, new Date(), new Date()).catch(ignoreMissing), BEAT_MS);
    beat.unref();
    return async () => {
      clearInterval(beat);
      if ((await readFile(path, "utf8").catch(ignoreMissing)) === own) await unlink(path).catch(ignoreMissing);
    };
  }

  private async names(folder: string): Promise<string[]> {
    const found = (await readdir(folder).catch(ignoreMissing)) ?? [];
    return found.filter((name) => name.endsWith(".json")).sort();
  }

  /** An entry; null if it was sent meanwhile. What cannot be read is put with what was refused. */
  private async read(name: string): Promise<Waiting | null> {
    const text = await readFile(join(this.folder, name), "utf8").catch(ignoreMissing);
    if (text === undefined) return null;
    try {
      return { name, entry: JSON.parse(text) as Entry };
    } catch {
      await rename(join(this.folder, name), join(this.folder, REFUSED, `${name}.unreadable`));
      return null;
    }
  }

  /** Durable, and whole or not there. */
  private async write(path: string, content: unknown): Promise<void> {
    const made = `${path}.new`;
    const file = await open(made, "w", 0o600);
    try {
      await file.writeFile(JSON.stringify(content));
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(made, path);
    const folder = await open(join(path, ".."), "r").catch(() => undefined); // not on every system
    await folder?.sync().catch(() => undefined);
    await folder?.close();
  }
}

/** Whether this process got the lock: a link appears whole, and for one process alone. */
async function taken(path: string, own: string): Promise<boolean> {
  const made = `${path}.${process.pid}`;
  await writeFile(made, own, { mode: 0o600 });
  try {
    await link(made, path);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return false;
    throw error;
  } finally {
    await unlink(made).catch(ignoreMissing);
  }
}

/** Whether the process that has the lock is gone; then the lock is removed. */
async function isStale(path: string): Promise<boolean> {
  const before = await readFile(path, "utf8").catch(ignoreMissing);
  if (before === undefined) return true;
  const age = Date.now() - ((await stat(path).catch(ignoreMissing))?.mtimeMs ?? 0);
  if (age < STALE_MS && isAlive(Number(before.split(" ")[0]))) return false;
  if ((await readFile(path, "utf8").catch(ignoreMissing)) === before) await unlink(path).catch(ignoreMissing);
  return true;
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}

function ignoreMissing(error: NodeJS.ErrnoException): undefined {
  if (error.code !== "ENOENT" && error.code !== "ENOTDIR") throw error;
}
