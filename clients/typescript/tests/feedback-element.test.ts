/** The component in a real browser: rated by mouse and by keyboard, by way of a page's own server, stored by Etude. */
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, describe, test } from "node:test";
import { build } from "esbuild";
import { type Browser, type Page, chromium } from "playwright-core";
import { type EtudeClient, feedbackRoute } from "@etude/client";
import { WITHOUT_SERVER, client, eventually, key, stored } from "./etude.js";

const CHROMIUM = [process.env["CHROMIUM_FOR_TESTS"], "/usr/bin/chromium", "/usr/bin/chromium-browser"].find((path) => path && existsSync(path));
const SKIPPED = WITHOUT_SERVER || (CHROMIUM ? false : "no Chromium: install Debian's package `chromium`, or name one in CHROMIUM_FOR_TESTS");
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
/** As strict as pages are: no inline styles, nothing from elsewhere. */
const POLICY = "default-src 'self'; require-trusted-types-for 'script'";
if (SKIPPED) console.log(`the feedback component is not tested: ${SKIPPED}`);

describe("the feedback component", { skip: SKIPPED }, () => {
  let browser: Browser;
  let page: Page;
  let etude: EtudeClient;
  let origin = "";
  let status = 0; // of answers, in place of the route's
  const sent: { body: Record<string, unknown>; headers: Record<string, unknown> }[] = [];
  const web = createServer(async (request, response) => {
    if (request.method === "GET") {
      const isScript = request.url?.endsWith(".js");
      const text = isScript ? await script() : '<!doctype html><html lang="en"><title>t</title><script type="module" src="/etude-feedback.js"></script><body></body>';
      return void response.writeHead(200, { "content-type": isScript ? "text/javascript" : "text/html; charset=utf-8", ...(request.url === "/plain" ? {} : { "content-security-policy": POLICY }) }).end(text);
    }
    let body = "";
    for await (const part of request) body += String(part);
    sent.push({ body: JSON.parse(body) as Record<string, unknown>, headers: request.headers });
    if (status) return void response.writeHead(status).end();
    const answer = await rate(new Request(`${origin}${request.url}`, { method: "POST", body }));
    response.writeHead(answer.status, Object.fromEntries(answer.headers)).end(await answer.text());
  });
  let rate: (request: Request) => Promise<Response>;

  before(async () => {
    etude = await client();
    rate = feedbackRoute(await client({ apiKey: await key("ingest") }), { user: () => "visitor-1" });
    await new Promise<void>((listening) => web.listen(0, "127.0.0.1", listening));
    origin = `http://127.0.0.1:${(web.address() as AddressInfo).port}`;
    browser = await chromium.launch({ executablePath: CHROMIUM as string, args: FLAGS });
    page = await browser.newPage();
    page.on("pageerror", (error) => assert.fail(error));
  });
  after(async () => {
    await browser?.close();
    web.close();
    web.closeAllConnections();
  });

  /** The component for a new decision; its task's id, signed. */
  async function shown(attributes: Record<string, string> = {}): Promise<string> {
    const { id } = await etude.decide({ problem: "choice:answer", context: "q", options: ["a", "b"] });
    sent.length = status = 0;
    await page.goto(origin);
    await page.evaluate((all) => {
      const element = document.createElement("etude-feedback");
      for (const [name, value] of Object.entries(all)) element.setAttribute(name, value);
      document.body.append(element);
    }, { task: id, endpoint: "/feedback", ...attributes });
    await page.waitForFunction(() => document.querySelector("etude-feedback")?.shadowRoot);
    return id;
  }

  async function rated(id: string) {
    await etude.feedback(id, { success: null });
    return await eventually(async () => (await stored(etude, id.split(".")[0] as string)).feedback?.[0]);
  }

  const says = async (text: string) => await page.getByRole("status").getByText(text).waitFor();

  test("a click on a thumb is stored under the task, without a key in the page", async () => {
    const id = await shown();
    await page.evaluate(() => {
      const heard: unknown[] = [];
      Object.assign(window, { heard });
      document.addEventListener("etude-rated", (event) => heard.push((event as CustomEvent).detail));
    });
    await page.getByRole("button", { name: "Good answer" }).click();
    await says("Thank you.");
    assert.equal(await page.getByRole("button", { name: "Good answer" }).getAttribute("aria-pressed"), "true");
    assert.deepEqual(await page.evaluate(() => (window as unknown as { heard: unknown }).heard), [{ id, thumbs: "up" }]);
    assert.deepEqual([sent.length, sent[0]?.body, sent[0]?.headers["authorization"]], [1, { id, thumbs: "up" }, undefined]);
    await page.getByRole("button", { name: "Bad answer" }).click({ force: true }); // it is rated: nothing more is sent
    assert.equal(sent.length, 1);
    const { thumbs, user } = await rated(id);
    assert.equal(thumbs, "up");
    assert.match(user ?? "", /./);
  });

  test("stars are given by keyboard alone", async () => {
    const id = await shown({ ask: "stars" });
    await page.keyboard.press("Tab");
    for (let i = 0; i < 3; i++) await page.keyboard.press("ArrowRight");
    const focused = await page.evaluate(() => document.querySelector("etude-feedback")?.shadowRoot?.activeElement?.ariaLabel);
    assert.equal(focused, "4 of 5 stars");
    assert.equal(sent.length, 0); // moving sends nothing
    await page.keyboard.press("Enter");
    await says("Thank you.");
    assert.equal((await rated(id)).stars, 4);
  });

  test("thumbs, stars and a comment are sent together, by a button, in the page's own words", async () => {
    const words = { question: "Wie war das?", send: "Senden", thanks: "Danke!", star: "{n} Sterne" };
    const id = await shown({ ask: "thumbs stars comment", texts: JSON.stringify(words) });
    await page.getByRole("group", { name: "Wie war das?" }).waitFor();
    await page.getByRole("button", { name: "Senden" }).click(); // nothing is chosen yet
    await page.getByRole("button", { name: "Bad answer" }).click();
    await page.getByRole("button", { name: "2 Sterne" }).click();
    await page.getByRole("textbox").fill("für später <b>✓</b>");
    assert.equal(sent.length, 0);
    await page.getByRole("button", { name: "Senden" }).click();
    await says("Danke!");
    const { thumbs, stars, comment } = await rated(id);
    assert.deepEqual([thumbs, stars, comment], ["down", 2, "für später <b>✓</b>"]);
  });

  test("what was not sent can be tried again, and what was rated is said so", async () => {
    const id = await shown();
    status = 503;
    await page.getByRole("button", { name: "Good answer" }).click();
    await says("That was not sent. Try again.");
    status = 0;
    await page.getByRole("button", { name: "Good answer" }).click();
    await says("Thank you.");
    await page.evaluate((task) => document.querySelector("etude-feedback")?.setAttribute("task", task), `${id.split(".")[0]}.`);
    await page.evaluate((task) => document.querySelector("etude-feedback")?.setAttribute("task", task), id); // a new question
    await page.getByRole("button", { name: "Bad answer" }).click();
    await says("You have rated this already.");
  });

  test("an id that Etude did not sign rates nothing", async () => {
    const id = await shown();
    const other = `${id.split(".")[0]}.${"0".repeat(20)}`;
    for (const body of [{ id: other, thumbs: "up" }, { id: id.split(".")[0], thumbs: "up" }, { id, success: true }, { id, stars: 9 }, { id }, "x", null]) {
      const answer = await rate(new Request(origin, { method: "POST", body: JSON.stringify(body) }));
      assert.ok([400, 403].includes(answer.status), `${JSON.stringify(body)}: ${answer.status}`);
    }
    assert.equal((await rate(new Request(origin))).status, 405);
    assert.equal((await rate(new Request(origin, { method: "POST", body: "{" }))).status, 400);
  });

  test("its parts take a page's style, and every control has a name, a size and a visible focus", async () => {
    await shown({ ask: "thumbs stars comment" });
    await page.evaluate(() => {
      const style = new CSSStyleSheet();
      style.replaceSync("etude-feedback::part(up) { background: rgb(1, 2, 3) } etude-feedback { --etude-chosen: rgb(4, 5, 6) }");
      document.adoptedStyleSheets = [style];
    });
    const up = page.getByRole("button", { name: "Good answer" });
    assert.equal(await up.evaluate((button) => getComputedStyle(button).backgroundColor), "rgb(1, 2, 3)");
    await up.click();
    assert.equal(await up.evaluate((button) => getComputedStyle(button).color), "rgb(4, 5, 6)");
    const controls = await page.getByRole("button").all();
    assert.equal(controls.length, 8);
    for (const control of controls) {
      const { width, height } = (await control.boundingBox()) ?? { width: 0, height: 0 };
      assert.ok(width >= 24 && height >= 24, `${width} × ${height}`);
      assert.ok(await control.getAttribute("aria-label"));
    }
    await up.focus();
    await page.keyboard.press("ArrowRight");
    const outline = await page.getByRole("button", { name: "Bad answer" }).evaluate((button) => getComputedStyle(button).outlineStyle);
    assert.equal(outline, "solid");
    if (process.env["SCREENSHOT_OF_TESTS"]) await page.screenshot({ path: process.env["SCREENSHOT_OF_TESTS"] });
  });

  test("the client works in a page, by way of its own server", async () => {
    await page.goto(`${origin}/plain`);
    sent.length = 0;
    const made = await build({ stdin: { contents: 'export * from "@etude/client"', resolveDir: process.cwd() }, bundle: true, format: "iife", globalName: "etude", platform: "browser", write: false });
    await page.addScriptTag({ content: made.outputFiles?.[0]?.text ?? "" });
    status = 503;
    const found = await page.evaluate(async () => {
      const { EtudeClient } = (window as unknown as { etude: typeof import("@etude/client") }).etude;
      const client = new EtudeClient({ url: "/etude", log: () => undefined });
      const chosen = await client.choose("tone", "hello", { options: ["formal", "casual"], default: "casual" });
      await chosen.task.outcome({ success: true });
      return { option: chosen.option, fallback: chosen.fallback, waiting: (await client.outbox.waiting()).length };
    });
    assert.deepEqual(found, { option: "casual", fallback: "away", waiting: 1 });
    assert.deepEqual(new Set(sent.map((one) => (one.body["trajectories"] ? "task" : one.body["problem"]))), new Set(["choice:tone", "task"]));
  });
});

let made: Promise<string> | undefined;

async function script(): Promise<string> {
  made ??= build({ entryPoints: ["dist/feedback-element.js"], bundle: true, minify: true, format: "esm", write: false }).then((found) => found.outputFiles[0]?.text ?? "");
  return await made;
}

