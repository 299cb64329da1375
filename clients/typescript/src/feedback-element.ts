/**
 * `<etude-feedback task="ID" endpoint="/etude/feedback">`: thumbs, stars and a comment for any page.
 *
 * Attributes: `task` is the signed id of an answer; `endpoint` takes the rating, with the key that the page has not;
 * `ask` names what to ask for, of `thumbs`, `stars` and `comment` ("thumbs"); `texts` is a JSON object with other
 * words. Thumbs or stars alone are sent at once; with a comment, or both, a button sends them. Events: `etude-rated`
 * and `etude-failed`. Parts for CSS: group, button, up, down, star, chosen, comment, send, status.
 */

const TEXTS = {
  question: "How was this answer?",
  up: "Good answer",
  down: "Bad answer",
  star: "{n} of 5 stars",
  comment: "Comment (optional)",
  send: "Send",
  sending: "Sending …",
  thanks: "Thank you.",
  already: "You have rated this already.",
  failed: "That was not sent. Try again.",
};

/** The words of the component; `{n}` is the number of stars. */
export type Texts = typeof TEXTS;

/** What was rated. */
export interface Rated {
  id: string;
  thumbs?: "up" | "down";
  stars?: number;
  comment?: string;
}

const STYLE = `
:host{display:inline-block;font:inherit}
[part=group]{border:0;margin:0;padding:0;display:flex;gap:.25em;align-items:center;flex-wrap:wrap;min-width:0}
legend{float:left;margin:0 .5em 0 0;padding:0}
button{font:inherit;color:inherit;background:none;border:1px solid transparent;border-radius:.4em;cursor:pointer;padding:.2em .4em;line-height:1;min-width:24px;min-height:24px}
button:hover{background:rgba(128,128,128,.15)}
button:focus-visible,textarea:focus-visible{outline:2px solid currentColor;outline-offset:1px}
button[aria-pressed=true]{color:var(--etude-chosen,#b35900);border-color:currentColor}
button[aria-disabled=true]{cursor:default;opacity:.6}
[part~=send]{border-color:currentColor}
textarea{font:inherit;flex-basis:100%;box-sizing:border-box;width:100%}
svg{width:1.2em;height:1.2em;vertical-align:middle;fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round}
.on svg{fill:currentColor}`;
const THUMB = "M7 10v11H3V10zM7 10l4-8c2 0 3 1 3 3l-1 4h6c2 0 2 1 2 2l-2 8c0 1-1 2-2 2H7";
const STAR = "M12 2l3 7 7 .6-5.3 4.7L18.4 22 12 18l-6.4 4 1.7-7.7L2 9.6 9 9z";

const Base: typeof HTMLElement = typeof HTMLElement === "undefined" ? (class {} as typeof HTMLElement) : HTMLElement;

export class EtudeFeedback extends Base {
  static readonly observedAttributes = ["task", "ask", "texts"];
  private rating: Omit<Rated, "id"> = {};
  private state: "open" | "sending" | "done" = "open";
  private words: Texts = TEXTS;

  connectedCallback(): void {
    this.build();
  }

  attributeChangedCallback(_name: string, before: string | null, now: string | null): void {
    if (this.isConnected && before !== now) this.build();
  }

  /** A new question: nothing is chosen. */
  private build(): void {
    [this.rating, this.state] = [{}, "open"];
    this.words = { ...TEXTS, ...textsIn(this.getAttribute("texts")) };
    const root = this.shadowRoot ?? this.attachShadow({ mode: "open", delegatesFocus: true });
    const group = made("fieldset", { part: "group" });
    group.append(made("legend", {}, this.words.question));
    if (this.asks("thumbs")) group.append(this.thumb("up"), this.thumb("down"));
    if (this.asks("stars")) for (let n = 1; n <= 5; n++) group.append(this.star(n));
    if (this.asks("comment")) {
      const box = made("textarea", { part: "comment", rows: "2", maxlength: "2000", placeholder: this.words.comment, "aria-label": this.words.comment });
      box.addEventListener("input", () => (this.rating.comment = (box as HTMLTextAreaElement).value));
      group.append(box);
    }
    if (!this.sendsAtOnce) group.append(this.button("send", this.words.send, () => void this.send(), this.words.send));
    group.addEventListener("keydown", (event) => this.move(event as KeyboardEvent, group));
    root.adoptedStyleSheets = [sheet()]; // a page's content security policy refuses <style>
    root.replaceChildren(group, made("span", { part: "status", role: "status" }));
  }

  private get sendsAtOnce(): boolean {
    return !this.asks("comment") && !(this.asks("thumbs") && this.asks("stars"));
  }

  private asks(what: string): boolean {
    return (this.getAttribute("ask") ?? "thumbs").split(/\s+/).includes(what);
  }

  private thumb(which: "up" | "down"): HTMLElement {
    return this.button(which, this.words[which], () => this.choose({ thumbs: which }), drawn(THUMB, which === "down" ? 180 : 0));
  }

  private star(n: number): HTMLElement {
    const button = this.button("star", this.words.star.replace("{n}", `${n}`), () => this.choose({ stars: n }), drawn(STAR));
    button.dataset["stars"] = `${n}`;
    return button;
  }

  private button(part: string, label: string, act: () => void, shown: Node | string): HTMLElement {
    const button = made("button", { type: "button", part: `button ${part}`, "aria-label": label, title: label });
    button.append(shown);
    if (part !== "send") button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => this.state === "open" && act());
    return button;
  }

  private choose(what: Omit<Rated, "id">): void {
    Object.assign(this.rating, what);
    for (const button of this.buttons()) {
      const isStar = button.dataset["stars"] !== undefined;
      const own = isStar ? Number(button.dataset["stars"]) : button.part.contains("up") ? "up" : "down";
      const isChosen = own === (isStar ? this.rating.stars : this.rating.thumbs);
      button.setAttribute("aria-pressed", `${isChosen}`);
      button.part.toggle("chosen", isChosen);
      button.classList.toggle("on", isChosen || (isStar && Number(own) <= (this.rating.stars ?? 0)));
    }
    if (this.sendsAtOnce) void this.send();
  }

  private buttons(): HTMLElement[] {
    return [...(this.shadowRoot?.querySelectorAll<HTMLElement>("button[aria-pressed]") ?? [])];
  }

  /** Arrow keys go from one button to the next. */
  private move(event: KeyboardEvent, group: HTMLElement): void {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const buttons = [...group.querySelectorAll<HTMLElement>("button")];
    const place = buttons.indexOf(event.target as HTMLElement);
    if (step === undefined || place < 0) return;
    event.preventDefault();
    buttons[(place + step + buttons.length) % buttons.length]?.focus();
  }

  private async send(): Promise<void> {
    const { thumbs, stars, comment } = this.rating;
    if (thumbs === undefined && stars === undefined && !comment?.trim()) return;
    const rated: Rated = { id: this.getAttribute("task") ?? "", ...this.rating };
    this.become("sending", this.words.sending);
    try {
      const response = await fetch(this.getAttribute("endpoint") ?? "/v1/feedback", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify(rated),
        keepalive: true, // also when the page is left
      });
      if (!response.ok && response.status !== 409) throw new Error(`status ${response.status}`);
      this.become("done", response.ok ? this.words.thanks : this.words.already);
      this.tell("etude-rated", rated);
    } catch (error) {
      this.become("open", this.words.failed);
      this.tell("etude-failed", { ...rated, error });
    }
  }

  private become(state: "open" | "sending" | "done", text: string): void {
    this.state = state;
    const status = this.shadowRoot?.querySelector("[part=status]");
    if (status) status.textContent = text;
    for (const control of this.shadowRoot?.querySelectorAll("button,textarea") ?? []) {
      control.setAttribute("aria-disabled", `${state !== "open"}`);
      if (control instanceof HTMLTextAreaElement) control.readOnly = state !== "open";
    }
  }

  private tell(name: string, detail: object): void {
    this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
  }
}

function made(tag: string, attributes: Record<string, string>, text = ""): HTMLElement {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  return element;
}

function drawn(path: string, turned = 0): SVGElement {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS(svg.namespaceURI, "path") as SVGElement;
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  line.setAttribute("d", path);
  line.setAttribute("transform", `rotate(${turned} 12 12)`);
  svg.append(line);
  return svg;
}

let shared: CSSStyleSheet | undefined;

function sheet(): CSSStyleSheet {
  if (!shared) (shared = new CSSStyleSheet()).replaceSync(STYLE);
  return shared;
}

function textsIn(json: string | null): Partial<Texts> {
  try {
    return json === null ? {} : (JSON.parse(json) as Partial<Texts>);
  } catch {
    console.warn("etude-feedback: texts is not JSON");
    return {};
  }
}

if (typeof customElements !== "undefined" && !customElements.get("etude-feedback")) {
  customElements.define("etude-feedback", EtudeFeedback);
}

declare global {
  interface HTMLElementTagNameMap {
    "etude-feedback": EtudeFeedback;
  }
}
