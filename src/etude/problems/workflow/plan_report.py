"""Plans drawn below each other, each with how it differs from the wanted plan, or from the plan before training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from markupsafe import Markup

from etude.contracts.formats import plural
from etude.problems.workflow.drawing import NO_TEXT, Colours, task_colours, to_svg
from etude.problems.workflow.plan import Plan
from etude.problems.workflow.showcase import Shown
from etude.reports.blocks import Section, View, view

OPEN = 4
"""Instructions whose plans are shown at once; the others unfold."""
MAX_INSTRUCTION_CHARS = 400
"""Of an instruction that is shown."""


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A line next to a drawing; `kind` is a class of the style sheet."""

    text: str
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawn plan with its name and remarks; no drawing where there is no plan."""

    title: str
    remarks: Sequence[Remark]
    drawing: Markup | None


@dataclass(frozen=True, kw_only=True)
class Example:
    """One instruction and the plans for it."""

    instruction: str
    figures: Sequence[Figure]
    is_open: bool = True


def draw_examples(examples: Sequence[Example]) -> View:
    return view("etude.problems.workflow:plans.html.jinja", examples=examples)


def plan_section(shown: Sequence[Shown], *, about: str) -> list[Section]:
    """`about` says where the instructions come from."""
    if not shown:
        return []
    note = "The last plan of each is the wanted one; the others are compared with it."
    if not shown[0].wanted:
        note = "The other plans are compared with the first."
    colours = task_colours(node.task_type for entry in shown for plan in entry.plans.values() for node in plan.nodes)
    figures = count(1)
    examples = [_example(entry, colours, figures, is_open=i < OPEN) for i, entry in enumerate(shown)]
    note = " ".join(part for part in (about, note, "A task type has one colour on this page.", _tally(shown)) if part)
    return [Section(title="Plans, before and after", name="plans", note=note, body=[draw_examples(examples)])]


def _tally(shown: Sequence[Shown]) -> str:
    """How many plans of each name are the same as the one they are compared with."""
    found: dict[str, list[bool]] = {}
    for entry in shown:
        reference = _reference(entry)
        for name in entry.plans.keys() - {reference}:
            found.setdefault(name, []).append(not differences(entry.plans[name], entry.plans[reference]))
    names = [name for name in dict.fromkeys(name for entry in shown for name in entry.plans) if name in found]
    counts = "; ".join(f"{one_line(name)}, {sum(found[name])} of {len(found[name])}" for name in names)
    return f"{'Exactly as wanted' if shown[0].wanted else 'Unchanged'}: {counts}." if counts else ""


def _reference(entry: Shown) -> str:
    return list(entry.plans)[-1 if entry.wanted else 0]


def _example(entry: Shown, colours: Colours, figures: count[int], *, is_open: bool) -> Example:
    reference = _reference(entry)
    drawn = [
        Figure(
            title=one_line(name),
            remarks=[Remark(text=_size(plan))] if name == reference else _compared(plan, entry, reference),
            drawing=Markup(to_svg(plan, colours=colours, figure=next(figures))),
        )
        for name, plan in entry.plans.items()
    ]
    said = one_line(entry.instruction)
    cut = said if len(said) <= MAX_INSTRUCTION_CHARS else f"{said[:MAX_INSTRUCTION_CHARS].rstrip()}…"
    return Example(instruction=cut, figures=drawn, is_open=is_open)


def _compared(plan: Plan, entry: Shown, reference: str) -> list[Remark]:
    found = differences(plan, entry.plans[reference])
    same = Remark(text="as wanted" if entry.wanted else "unchanged", kind="up")
    kind = "down" if entry.wanted else ""  # without a wanted plan, a change is neither good nor bad
    agreed = Remark(text=agreement(plan, entry.plans[reference]))
    return [agreed, *([Remark(text=words, kind=kind) for words in found] or [same])]


def one_line(text: str) -> str:
    return " ".join(NO_TEXT.sub(" ", text).split())


def agreement(plan: Plan, wanted: Plan) -> str:
    """How many of the wanted subtasks and links are there, such as `2 of 3 subtasks, 1 of 2 links`."""
    own, theirs = _types(plan), _types(wanted)
    words = f"{(own & theirs).total()} of {plural(theirs.total(), 'subtask')}"
    links = Counter(wanted.links)
    if links:
        words += f", {(Counter(plan.links) & links).total()} of {plural(links.total(), 'link')}"
    return words


def differences(plan: Plan, wanted: Plan) -> list[str]:
    """What is missing, extra or given to another worker; nothing where the plan is as wanted.

    A link of a subtask that is missing or extra itself is not mentioned.
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
    return [f"{what}: {', '.join(map(one_line, names))}" for what, names in found.items() if names]


def _other_workers(plan: Plan, wanted: Plan) -> list[str]:
    """Where a wanted plan names workers: the subtasks of both plans that are given to different ones."""
    found = []
    for kind in _types(plan).keys() & _types(wanted).keys():
        own, theirs = (sorted(n.worker for n in p.nodes if n.task_type == kind and n.worker) for p in (plan, wanted))
        if own and theirs and len(own) == len(theirs) and own != theirs:
            found.append(f"{kind} by {' and '.join(own)}, not {' and '.join(theirs)}")
    return sorted(found)


def _types(plan: Plan) -> Counter[str]:
    return Counter(node.task_type for node in plan.nodes)


def _size(plan: Plan) -> str:
    return ", ".join(plural(n, what) for n, what in ((len(plan.nodes), "subtask"), (len(plan.links), "link")) if n)
