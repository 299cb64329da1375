/** A server that this process starts, and ends by its process id. */
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { promisify } from "node:util";
import { ConfigError, EtudeError, ServerAway, TimedOut } from "../errors.js";
import type { RunningServer, ServerOptions } from "./platform.js";

const LOOK_MS = 100;
const GRACE_MS = 20_000;
const run = promisify(execFile);

/** Start `etude serve` and wait until it is ready. */
export async function startServer(options: ServerOptions): Promise<RunningServer> {
  const { apiKey = await makeKey(options), command, folder } = options;
  const [program, ...first] = command as [string, ...string[]];
  const child = spawn(program, [...first, "serve", "--no-loop", "--port", `${options.port}`], {
    cwd: folder,
    stdio: ["ignore", "ignore", "pipe"],
  });
  const end = () => child.kill("SIGKILL");
  process.once("exit", end); // a server that nobody can stop would keep the port
  try {
    const url = await untilReady(child, options.startTimeoutMs);
    const stop = async () => {
      await ended(child);
      process.removeListener("exit", end);
      if (options.apiKey === undefined) await etude(options, "keys", "revoke", apiKey.split("_")[1] ?? "").catch(() => "");
    };
    return { url, apiKey, pid: child.pid as number, stop };
  } catch (error) {
    await ended(child);
    process.removeListener("exit", end);
    throw error;
  }
}

/** A key of this process alone. It is made before the server starts, so that the server prints none. */
async function makeKey(options: ServerOptions): Promise<string> {
  const printed = await etude(options, "keys", "create", "--role", "admin", "--name", `node-${process.pid}`);
  const found = /etude_\S+/.exec(printed)?.[0];
  if (found === undefined) throw new EtudeError(`\`etude keys create\` printed no key: ${printed.slice(-500)}`);
  return found;
}

async function etude(options: ServerOptions, ...more: string[]): Promise<string> {
  const [program, ...first] = options.command as [string, ...string[]];
  try {
    return (await run(program, [...first, ...more], { cwd: options.folder })).stdout;
  } catch (error) {
    throw notThere(error, program);
  }
}

function notThere(error: unknown, program: string): EtudeError {
  const { code, stderr = "" } = error as { code?: unknown; stderr?: string };
  if (code !== "ENOENT") return new EtudeError(`${program} failed: ${stderr.slice(-500) || String(error)}`, { cause: error });
  const hint = "install it with `pip install 'etude[serve]'`, or give its command, such as [\"/path/to/etude\"]";
  return new ConfigError(`there is no command '${program}': ${hint}`, { cause: error });
}

/** The URL that the server prints, once it answers that it is ready. */
async function untilReady(child: ChildProcess, timeoutMs: number): Promise<string> {
  let printed = "";
  let failure: EtudeError | undefined;
  child.stderr?.setEncoding("utf8").on("data", (text: string) => (printed = (printed + text).slice(-4000)));
  child.on("error", (error) => (failure = notThere(error, child.spawnfile)));
  for (const until = Date.now() + timeoutMs; Date.now() < until; await new Promise((go) => setTimeout(go, LOOK_MS))) {
    if (failure) throw failure;
    if (child.exitCode !== null) throw new ServerAway(`\`etude serve\` ended before it was ready: ${printed.trim()}`, true);
    const url = /serving at (http\S+?);/.exec(printed)?.[1];
    if (url !== undefined && (await isReady(url))) return url;
  }
  throw new TimedOut(`\`etude serve\` was not ready within ${timeoutMs} ms: ${printed.trim()}`, timeoutMs);
}

async function isReady(url: string): Promise<boolean> {
  try {
    return (await fetch(`${url}/ready`)).ok;
  } catch {
    return false;
  }
}

/** Ask the process to end, and end it if it does not. */
async function ended(child: ChildProcess): Promise<void> {
  if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
  const gone = new Promise((resolve) => child.once("exit", resolve));
  const timer = setTimeout(() => child.kill("SIGKILL"), GRACE_MS);
  child.kill("SIGTERM");
  await gone;
  clearTimeout(timer);
}
