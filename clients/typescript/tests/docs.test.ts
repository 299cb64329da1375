/** The page about this package: its TypeScript is one program, which compiles and runs with a real server. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { resolve } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { WITHOUT_SERVER, newFolder, server } from "./etude.js";

const run = promisify(execFile);

test("the TypeScript of docs/24-typescript.md compiles and runs", { skip: WITHOUT_SERVER }, async () => {
  const page = await readFile("../../docs/24-typescript.md", "utf8");
  const blocks = [...page.matchAll(/^```ts\n([\s\S]*?)^```$/gm)].map((found) => found[1] as string);
  assert.ok(blocks.length >= 6);
  await mkdir("build/docs", { recursive: true });
  await writeFile("build/docs/page.mts", blocks.join("\n"));
  const config = { extends: "../../tsconfig.tests.json", compilerOptions: { rootDir: ".", outDir: "out", noUnusedLocals: false }, include: ["page.mts"] };
  await writeFile("build/docs/tsconfig.json", JSON.stringify(config));
  await run(process.execPath, ["node_modules/typescript/bin/tsc", "-p", "build/docs"]).catch((error: { stdout: string }) => assert.fail(error.stdout));
  const { url, apiKey } = await server();
  const env = { ...process.env, ETUDE_URL: url, ETUDE_API_KEY: apiKey };
  const { stdout } = await run(process.execPath, [resolve("build/docs/out/page.mjs")], { cwd: await newFolder(), env });
  assert.match(stdout, /^(formal|casual) 1 uniform$|^(formal|casual) [\d.]+ \S+$/m);
  assert.match(stdout, /^options /m);
  assert.match(stdout, /^enough$/m);
  assert.match(stdout, /^202$/m);
});
