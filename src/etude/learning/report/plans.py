"""Plans drawn beneath each other, with what tells them from the wanted one in words beside each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import count

import msgspec

from etude.learning.report.page import section
from etude.learning.showcase import Shown
from etude.problems.workflow.drawing import UNWANTED, to_svg
from etude.problems.workflow.plan import Plan

OPEN = 4
"""Instructions whose plans are shown at once; the others unfold."""
LONGEST = 400
"""Characters of an instruction that are shown."""


def plan_section(shown: Sequence[Shown], *, about: str) -> str:
    """`about` says where the instructions come from."""
    if not shown:
        return ""
    note = f"{about} The last plan of each is the wanted one; beside the others stands what tells them from it. "
    note += _tally(shown)
    numbers = count(1)
    body = "".join(_entry(entry, numbers, is_open=i < OPEN) for i, entry in enumerate(shown))
    return section("Plans, before and after", note, f'<div id="plans">{body}</div>')


def _tally(shown: Sequence[Shown]) -> str:
    """How many plans of each name are as wanted."""
    found: dict[str, list[bool]] = {}
    for entry in shown:
        *others, wanted = entry.plans
        for name in others:
            found.setdefault(name, []).append(not differences(entry.plans[name], entry.plans[wanted]))
    told = "; ".join(f"{name}, {sum(same)} of {len(same)}" for name, same in found.items())
    return f"Just as wanted: {_line(told)}." if told else ""


def _entry(entry: Shown, numbers: count[int], *, is_open: bool) -> str:
    *_, last = entry.plans
    figures = ""
    for name, plan in entry.plans.items():
        words = f"<p>{_size(plan)}</p>" if name == last else _compared(plan, entry.plans[last])
        figures += f'<div class="plan"><div><h3>{escape(_line(name))}</h3>{words}</div>'
        figures += f'<div class="scroll">{_drawn(plan, next(numbers))}</div></div>'
    said = _line(entry.instruction)
    cut = said if len(said) <= LONGEST else f"{said[:LONGEST].rstrip()}…"
    return f"<details{' open' if is_open else ''}><summary>{escape(cut) or '(empty)'}</summary>{figures}</details>"


def _compared(plan: Plan, wanted: Plan) -> str:
    found = differences(plan, wanted)
    words = "".join(f'<p class="down">{escape(words)}</p>' for words in found) or '<p class="up">as wanted</p>'
    return f"<p>{agreement(plan, wanted)}</p>{words}"


def _line(text: str) -> str:
    return " ".join(UNWANTED.sub(" ", text).split())


def _drawn(plan: Plan, number: int) -> str:
    """The picture without its caption, which the page has already. Ids belong to the page: each gets its own."""
    svg = to_svg(msgspec.structs.replace(plan, instruction=""))
    svg = svg.replace(' xmlns="http://www.w3.org/2000/svg"', "", 1)
    marker = re.search(r'<marker id="(arrow-\w+)"', svg)
    assert marker is not None
    for before, after in (('id="', '"'), ("url(#", ")")):
        svg = svg.replace(f"{before}{marker[1]}{after}", f"{before}arrow-{number}{after}")
    return svg


def agreement(plan: Plan, wanted: Plan) -> str:
    """How many of the wanted subtasks and links are there, such as `2 of 3 subtasks, 1 of 2 links`."""
    own, theirs = _types(plan), _types(wanted)
    told = f"{(own & theirs).total()} of {_counted(theirs.total(), 'subtask')}"
    links = Counter(wanted.links)
    if links:
        told += f", {(Counter(plan.links) & links).total()} of {_counted(links.total(), 'link')}"
    return told


def differences(plan: Plan, wanted: Plan) -> list[str]:
    """What is missing, extra or done by somebody else; nothing where the plan is as wanted.

    A link of a subtask that is missing or extra itself goes without saying.
    """
    own, theirs = _types(plan), _types(wanted)
    missing, extra = theirs - own, own - theirs
    links, wanted_links = Counter(plan.links), Counter(wanted.links)
    no_link = [link for link in (wanted_links - links).elements() if not missing.keys() & set(link)]
    more_links = [link for link in (links - wanted_links).elements() if not extra.keys() & set(link)]
    found = {
        "missing": list(missing.elements()),
        "extra": list(extra.elements()),
        "missing link": [" → ".join(link) for link in no_link],
        "extra link": [" → ".join(link) for link in more_links],
        "other worker": _other_workers(plan, wanted),
    }
    return [f"{what}: {', '.join(map(_line, names))}" for what, names in found.items() if names]


def _other_workers(plan: Plan, wanted: Plan) -> list[str]:
    """Where a wanted plan names workers: the subtasks of both plans that go to others."""
    told = []
    for kind in _types(plan).keys() & _types(wanted).keys():
        own, theirs = (sorted(n.worker for n in p.nodes if n.task_type == kind and n.worker) for p in (plan, wanted))
        if own and theirs and len(own) == len(theirs) and own != theirs:
            told.append(f"{kind} by {' and '.join(own)}, not {' and '.join(theirs)}")
    return sorted(told)


def _types(plan: Plan) -> Counter[str]:
    return Counter(node.task_type for node in plan.nodes)


def _size(plan: Plan) -> str:
    return ", ".join(_counted(n, what) for n, what in ((len(plan.nodes), "subtask"), (len(plan.links), "link")) if n)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
