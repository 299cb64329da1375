/** How much a page loads: the bundles are small, and depend on nothing. */
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";
import { VERSION } from "@etude/client";

const KB = 1024;

async function bundled(entry: string, platform: "browser" | "node"): Promise<{ text: string; gzip: number }> {
  const made = await build({ entryPoints: [entry], bundle: true, minify: true, format: "esm", platform, write: false });
  const [file] = made.outputFiles;
  assert.ok(file);
  return { text: file.text, gzip: gzipSync(file.contents, { level: 9 }).length };
}

test("all of the client is below 15 KB, for browsers and for Node", async () => {
  for (const platform of ["browser", "node"] as const) {
    const { text, gzip } = await bundled("dist/index.js", platform);
    console.log(`the client for ${platform}: ${(gzip / KB).toFixed(1)} KB gzip`);
    assert.ok(gzip < 15 * KB, `${gzip}`);
    assert.equal(/node:|process\./.test(text), platform === "node"); // a browser's has nothing of Node
  }
});

test("the feedback component is below 4 KB", async () => {
  const { gzip } = await bundled("dist/feedback-element.js", "browser");
  console.log(`the feedback component: ${(gzip / KB).toFixed(1)} KB gzip`);
  assert.ok(gzip < 4 * KB, `${gzip}`);
});

test("the package has one version and no dependencies", async () => {
  const about = JSON.parse(await readFile("package.json", "utf8")) as Record<string, unknown>;
  assert.equal(about["version"], VERSION);
  assert.equal(about["dependencies"], undefined);
});
