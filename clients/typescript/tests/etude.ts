/** A real server for the tests, and a front that fails as networks do. */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { type IncomingMessage, type Server, type ServerResponse, createServer, request as forward } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { after } from "node:test";
import { promisify } from "node:util";
import { EtudeClient, type ClientOptions } from "@etude/client";
import { startServer } from "../src/platform/server.js";
import type { RunningServer } from "../src/platform/platform.js";

const run = promisify(execFile);
const PYTHON = [process.env["PYTHON_FOR_TESTS"], resolve("../../.venv/bin/python")].find((path) => path && existsSync(path));
/** Why tests with a server are skipped; false if they are not. */
export const WITHOUT_SERVER = PYTHON ? false : "no Python with Etude: run `make setup`, or name one in PYTHON_FOR_TESTS";
export const COMMAND = [PYTHON ?? "python3", "-m", "etude.cli"];

const folders: string[] = [];
const cleanups: (() => unknown)[] = [];
after(async () => {
  for (const clean of cleanups.reverse()) await clean();
  for (const folder of folders) await rm(folder, { recursive: true, force: true });
});

export async function newFolder(): Promise<string> {
  folders.push(await mkdtemp(join(tmpdir(), "etude-test-")));
  return folders.at(-1) as string;
}

let started: Promise<RunningServer & { folder: string }> | undefined;

/** The server of all tests, with a key of the role `admin`. */
export async function server(): Promise<RunningServer & { folder: string }> {
  started ??= (async () => {
    const folder = await newFolder();
    const made = await startServer({ command: COMMAND, port: 0, folder, startTimeoutMs: 180_000, apiKey: undefined });
    cleanups.push(() => made.stop());
    return { ...made, folder };
  })();
  return await started;
}

const keys = new Map<string, Promise<string>>();

/** A key of a role, with other options of `etude keys create`. */
export async function key(role: string, ...more: string[]): Promise<string> {
  const asked = [role, ...more].join(" ");
  const made = keys.get(asked) ?? newKey(role, ...more);
  keys.set(asked, made);
  return await made;
}

async function newKey(role: string, ...more: string[]): Promise<string> {
  const { folder, url } = await server();
  const [program, ...first] = COMMAND as [string, ...string[]];
  const made = (await run(program, [...first, "keys", "create", "--role", role, ...more], { cwd: folder })).stdout.trim();
  const headers = { authorization: `Bearer ${made}` };
  await eventually(async () => (await fetch(`${url}/v1/jobs`, { headers })).status !== 401); // it is read within two seconds
  return made;
}

/** A client of the server, with an outbox of its own. */
export async function client(options: ClientOptions = {}): Promise<EtudeClient> {
  const { url, apiKey } = await server();
  const made = new EtudeClient({ url, apiKey, outbox: await newFolder(), decideTimeoutMs: 10_000, ...options });
  cleanups.push(() => made.close(0));
  return made;
}

/** What a front does with a request: pass it on if it returns nothing. */
export type Fault = (request: IncomingMessage, response: ServerResponse, body: string) => unknown;

export interface Front {
  url: string;
  requests: { method: string; path: string; headers: IncomingMessage["headers"]; body: string }[];
  fault: Fault | null;
  /** End all connections. */
  cut(): void;
  stop(): void;
}

/** A server before the server, which answers as `fault` says, changes answers, or drops them. */
export async function front(options: { drop?: (path: string) => boolean; headers?: Record<string, string>; port?: number } = {}): Promise<Front> {
  const { url } = await server();
  const made: Front = { url: "", requests: [], fault: null, cut: () => undefined, stop: () => undefined };
  const listening: Server = createServer(async (request, response) => {
    let body = "";
    for await (const part of request) body += String(part);
    const path = request.url ?? "";
    made.requests.push({ method: request.method ?? "", path, headers: request.headers, body });
    if ((await made.fault?.(request, response, body)) !== undefined || response.writableEnded) return;
    const onward = forward(url + path, { method: request.method, headers: { ...request.headers, host: new URL(url).host } }, (answer) => {
      if (options.drop?.(path)) return void answer.resume().on("end", () => request.socket.destroy());
      response.writeHead(answer.statusCode ?? 500, { ...answer.headers, ...options.headers });
      answer.pipe(response);
      response.on("close", () => onward.destroy());
    });
    onward.on("error", () => response.destroy());
    onward.end(body);
  });
  await new Promise<void>((done) => listening.listen(options.port ?? 0, "127.0.0.1", done));
  made.url = `http://127.0.0.1:${(listening.address() as AddressInfo).port}`;
  made.cut = () => listening.closeAllConnections();
  made.stop = () => {
    listening.close();
    made.cut();
  };
  cleanups.push(made.stop);
  return made;
}

/** A port where nothing listens. */
export async function freePort(): Promise<number> {
  const listening = createServer();
  await new Promise<void>((done) => listening.listen(0, "127.0.0.1", done));
  const { port } = listening.address() as AddressInfo;
  await new Promise((done) => listening.close(done));
  return port;
}

/** A refusal in the server's form. */
export function refuse(response: ServerResponse, status: number, headers: Record<string, string> = {}): true {
  const body = JSON.stringify({ title: "Refused", status, detail: "as the test wants it", request_id: "test" });
  response.writeHead(status, { "content-type": "application/problem+json", ...headers }).end(body);
  return true;
}

/** The stored task, when it is there. */
export async function stored(etude: EtudeClient, id: string) {
  const found = await eventually(() => etude.call("GET /v1/trajectories/{id}", { path: { id } }).catch(() => null));
  return found;
}

export async function eventually<T>(look: () => Promise<T | null | undefined | false>, timeoutMs = 20_000): Promise<T> {
  for (const until = Date.now() + timeoutMs; Date.now() < until; await new Promise((go) => setTimeout(go, 50))) {
    const found = await look();
    if (found) return found;
  }
  throw new Error(`not within ${timeoutMs} ms`);
}
