"""Random Markdown prompts with everything in them that a mutation must not lose."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

OPENINGS = (
    "Hi there!",
    "Hello,",
    "I hope you are doing well.",
    "You are a helpful assistant for Contoso.",
    "Could you please",
    "Please",
    "I would like you to",
    "Thanks a lot in advance!",
    "Du bist ein hilfreicher Assistent.",
    "あなたは翻訳者です。",
)
REQUESTS = (
    "write a function that reverses a string",
    "summarise the text below in at most 3 sentences",
    "extract every date, list the names and then sort them by year",
    "translate the following message to French",
    "compare the plans A and B, and recommend one",
    "plan a launch of 12 weeks with a budget of 4,500 euros",
    "classify the ticket as bug, feature or question",
    "solve 3x + 5 = 20 and show each step",
    "write a blog post covering history, uses and limits",
    "answer the question of the user in a friendly tone",
    "fasse den Text zusammen und nenne drei Punkte",
    "explain what this means",
)
FILLERS = (
    "Be concise.",
    "Please be concise.",
    "Do not invent facts.",
    "It is important to note that the deadline is on 2024-05-17.",
    "In order to succeed, make use of every source.",
    "Basically, this matters.",
    "If you do not know, say so.",
    "Return valid JSON only.",
    "Thank you so much for your help!",
    "First read it, then think, finally answer.",
    "Use **bold** and *italics* where it helps.",
    "See https://example.com/a?b=1&c=2 or mail me at ana@example.org.",
    'Read [the guide](https://example.com/guide "Guide") and ![a chart](chart.png).',
    "The value is `x = 1` or ``a ` b``.",
    "It costs 3.50 dollars, 20% off.",
    "e.g. this, i.e. that.",
    "Dr. Smith said so.",
    "<b>bold</b> and <name>.",
    "As [noted][ref].",
    "a < b and c > d, \\*not emphasis\\*",
    "$HOME and ${PATH} and %s and %(name)s",
    "[YOUR NAME] wrote to [insert topic].",
    "\u00a0non-breaking\u2028separator",
    "😀 emoji e\u0301 combining",
)
PLACEHOLDERS = (
    "{text}",
    "{{ user.name }}",
    "${QUESTION}",
    "<document>",
    "{{#if x}}",
    "{{/if}}",
    "{% if a %}",
    "{% endif %}",
    "{0}",
    "{}",
    "{{{raw}}}",
    "%s",
)
CUES = ("Answer:", "### Response:", "Output:", "A:", "Text: {text}", "{question}", "Q: {q}\nA:")
TAILS = ("", "\n", "\n\n", "  ", "\n\n\n", "\t\n")


def random_prompt(rng: Random) -> str:
    """Blocks of all kinds in any order, some of them broken off, with or without empty lines between them."""
    line = "\r\n" if rng.random() < 0.1 else "\n"
    parts = []
    if rng.random() < 0.1:
        parts.append("---\ntitle: prompt\nversion: 2\n---")
    for _ in range(rng.randint(1, 9)):
        parts.append(rng.choices(KINDS, WEIGHTS)[0](rng))
        if rng.random() < 0.1:
            parts.append(rng.choice(parts))
    if rng.random() < 0.3:
        parts.append(rng.choice(CUES))
    made = parts[0]
    for part in parts[1:]:
        made += rng.choices(("\n\n", "\n", "\n\n\n"), (8, 2, 1))[0] + part
    return (rng.choice(("", "", "", "\n", "  ")) + made + rng.choice(TAILS)).replace("\n", line) or "x"


def random_chat(rng: Random) -> tuple[dict[str, object], ...]:
    """Messages of a chat, some with parts, one with a call of a tool."""
    messages: list[dict[str, object]] = []
    if rng.random() < 0.7:
        messages.append({"role": "system", "content": random_prompt(rng)})
    for _ in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": random_prompt(rng)})
        if rng.random() < 0.3:
            messages[-1]["content"] = [
                {"type": "text", "text": random_prompt(rng)},
                {"type": "image_url", "image_url": {"url": "https://example.com/x.png"}},
            ]
        messages.append({"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]})
        messages.append({"role": "tool", "content": "Please do 17 things ```"})
    return tuple(messages)


def paragraph(rng: Random) -> str:
    sentences = [rng.choice(OPENINGS)] if rng.random() < 0.5 else []
    for _ in range(rng.randint(0, 4)):
        sentences.append(rng.choice((request, filler, with_placeholder))(rng))
    rng.shuffle(sentences) if rng.random() < 0.3 else None
    if rng.random() < 0.15:
        sentences.append(rng.choice(sentences or ["x"]))
    return rng.choices((" ", "\n", "  \n"), (8, 2, 1))[0].join(sentences) or "x"


def request(rng: Random) -> str:
    asked = rng.choice(REQUESTS)
    return (asked if rng.random() < 0.3 else asked.capitalize()) + rng.choice(
        (".", "?", ":", ", and then list them.", "")
    )


def filler(rng: Random) -> str:
    return rng.choice(FILLERS)


def with_placeholder(rng: Random) -> str:
    verb, end = rng.choice(("Read", "Please use", "Thank you", "It is")), rng.choice((".", "", " now."))
    return f"{verb} {rng.choice(PLACEHOLDERS)}{end}"


def heading(rng: Random) -> str:
    name = rng.choice(("Task", "Rules", "Input", "Constraints", "Steps", "Example 1", "Fallbacks"))
    return rng.choice((f"{'#' * rng.randint(1, 6)} {name}", f"{name}\n{rng.choice(('---', '==='))}", f"**{name}:**"))


def bullets(rng: Random, depth: int = 0) -> str:
    ordered = rng.random() < 0.3
    marker = rng.choice("-*+")
    items = []
    for number in range(1, rng.randint(2, 5)):
        head = f"{number}{rng.choice('.)')} " if ordered else f"{marker} "
        body = rng.choice((request, filler, with_placeholder, lambda r: "Be brief and clear."))(rng)
        if depth < 2 and rng.random() < 0.2:
            inner = bullets(rng, depth + 1) if rng.random() < 0.6 else fence(rng)
            body += rng.choice(("\n", "\n\n")) + "\n".join(" " * len(head) + each for each in inner.split("\n"))
        items.append(head + body)
    return rng.choices(("\n", "\n\n"), (4, 1))[0].join(items)


def fence(rng: Random) -> str:
    mark = rng.choice(("```", "~~~", "````"))
    body = rng.choice(
        (
            '{"a": 1, "b": "{x}"}',
            "Please do 5 things.\n\nThanks!",
            "for i in range(3):\n    print(f'{i}')",
            "",
            "# 1\n- 2",
        )
    )
    return f"{mark}{rng.choice(('json', 'python', '', 'text {1}'))}\n{body}\n{mark}"


def quote(rng: Random) -> str:
    return "\n".join(f"> {each}" for each in rng.choice((paragraph, bullets, fence))(rng).split("\n"))


def table(rng: Random) -> str:
    return f"| a | b {rng.randint(0, 99)} |\n|---|:-:|\n| Please | {{x}} |\n| `c` | 2 |"


def html(rng: Random) -> str:
    return rng.choice(
        (
            "<div>\nPlease keep 4\n</div>",
            "<!-- please\n\nkeep 5 -->",
            "<document>\n{{text}}\n</document>",
            "<instructions>\nPlease write a test and run it.\n\nThanks!\n</instructions>",
            "<pre>\nPlease 6\n\n</pre>",
        )
    )


def template(rng: Random) -> str:
    return rng.choice(
        (
            "{% for d in docs %}\n- {{ d.title }}: {{ d.text }}\n{% endfor %}",
            "{{#each items}}\nPlease read {{this}}.\n{{/each}}",
            "{% if premium %}Be kind. {% else %}Be kind. {% endif %}",
            "{# a comment, please #}",
        )
    )


def indented(rng: Random) -> str:
    return "    Please keep 7\n    and {this}"


def rest(rng: Random) -> str:
    return rng.choice(
        (
            "---",
            "[ref]: https://example.com/ref 'Ref'",
            "***",
            "Thanks!",
            "Be concise.",
            "Please",
            "+",
            "1.",
            "# ",
            "x" * 50,
        )
    )


KINDS: tuple[Callable[[Random], str], ...] = (
    paragraph,
    heading,
    bullets,
    fence,
    quote,
    table,
    html,
    template,
    indented,
    rest,
)
WEIGHTS = (10, 3, 4, 2, 1, 1, 1.5, 1.5, 1, 2)
