"""expansion: details that a short prompt leaves open: inputs, form of the result, what good looks like, an example.

Details that the prompt already gives are left out. The lead-in is recognised, so the mutation is idempotent.
"""

from __future__ import annotations

from collections.abc import Mapping

from etude.problems.prompt.mutations.additions import addition
from etude.problems.prompt.mutations.edits import Edit
from etude.problems.prompt.mutations.task import Task
from etude.problems.prompt.mutations.wording import any_of

NAME = "expansion"
TITLES = ("What is wanted in detail", "Details of a good result", "What a good result looks like")
LEADS = ("What is wanted, in detail", "Details of what is wanted", "What a good result looks like")
ADDED = any_of(*(each.lower() for each in (*TITLES, *LEADS)))

PRESENT = {
    "input": any_of(r"inputs?:|given:|you (?:are given|get|will (?:get|receive|be given))|takes? (?:a|an|two|the)\b"),
    "output": any_of(
        r"outputs?:|(?:output|answer|response|reply) (?:format|should|must|has to|in the form)|json|csv|yaml|table",
        r"return (?:a|an|the)|sections?:|in this (?:order|format)|structure[ds]?|following format|one word|yes or no",
    ),
    "quality": any_of(
        r"a good (?:\w+ )?(?:\w+ )?(?:is|has|does)|criteria|high[- ]quality|should be (?:\w+,? )+and \w+|make sure|"
        r"ensure",
        r"must be|best practices?|acceptance",
    ),
    "example": any_of(r"for example|for instance|e\.g\.|examples?:?|such as|like this|sample"),
}
"""What says that a prompt gives that detail."""


def plan(task: Task) -> tuple[Edit, ...] | str:
    """The edits, or the reason why there are none."""
    if ADDED.search(task.words):
        return "it was expanded already"
    items = [task.pick(options).format(it=_made(task)) for name, options in _options(task) if _is_open(task, name)]
    if not items:
        return "it already gives its inputs, its form, what is good, and an example"
    at = TITLES.index(task.pick(TITLES))
    return (addition(task.document, LEADS[at], items, title=TITLES[at]),)


def _options(task: Task) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(DETAILS[task.way].items())


def _is_open(task: Task, name: str) -> bool:
    if name in ("output", "example") and (task.is_strict or task.wants_json):
        return False  # nothing may be put around the answer
    return PRESENT[name].search(task.words) is None


def _made(task: Task) -> str:
    return (
        f"the {task.deliverable}"
        if task.deliverable
        else {"code": "the code", "planning": "the plan"}.get(task.kind, "the text")
    )


DETAILS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "code": {
        "input": (
            "Inputs: state for each input its type, a typical value, and whether it may be missing.",
            "Inputs: begin with the types of everything that comes in and goes out of {it}.",
        ),
        "output": (
            "Result: {it} in full, then a short usage example with its output, then known limits in one or two lines.",
            "Result: in this order, the complete code, how to call it, and what it gives back.",
        ),
        "quality": (
            "Quality: clear names, one purpose per part, errors that say what was wrong, no surprising side effects.",
            "Quality: {it} is easy to read, handles empty, very large and invalid inputs, and follows the "
            "conventions "
            "of its language.",
        ),
        "example": (
            "Example: show one typical call and one edge case, each with the result that is expected.",
            "Example: add a test for the usual case and one for an edge case.",
        ),
    },
    "change of code": {
        "input": (
            "Begin with what happens now and what should happen, each in one sentence.",
            "First say how the present behaviour can be seen, and what it should be.",
        ),
        "output": (
            "Result: the cause in one or two sentences, then the changed code, then what else the change affects.",
            "Result: only the parts that change, each with the reason, and how to check the change.",
        ),
        "quality": (
            "Quality: the smallest change that removes the cause and not just the symptom, in the style of the code "
            "around it.",
            "Quality: everything that worked before works as before, and the next reader sees why it was changed.",
        ),
        "example": (
            "Example: show one case that fails before the change and works after it.",
            "Example: add a test that fails without the change.",
        ),
    },
    "interface": {
        "input": (
            "Begin with the data that {it} shows and where they come from, and with what users can do there.",
            "First list the states of {it}: empty, loading, failed, filled.",
        ),
        "output": (
            "Result: {it} in full, divided into parts with clear names, then how to run it.",
            "Result: in this order, the structure, the complete code, the styles, and what is left open.",
        ),
        "quality": (
            "Quality: it works on small screens and with the keyboard, labels everything for screen readers, and "
            "does "
            "not jump while it loads.",
            "Quality: clear names, one purpose per part, text that can be replaced, no values repeated in several "
            "places.",
        ),
        "example": (
            "Example: fill it with realistic content, and include one very long and one missing value.",
            "Example: show how {it} looks with one entry, with many, and with none.",
        ),
    },
    "writing": {
        "input": (
            "Before writing, settle who reads {it}, what they know already, and what they should do afterwards.",
            "Begin from the reader: what do they want to know first, and what would stop them from reading on?",
        ),
        "output": (
            "Form: an opening that makes the point, a middle with one concrete example per claim, an end with the "
            "next "
            "step.",
            "Form: the first sentence says why this matters; each paragraph has one idea; the last one asks for "
            "something definite.",
        ),
        "quality": (
            "Quality: specific nouns and active verbs, sentences that can be read aloud, no sentence that fits "
            "everywhere.",
            "Quality: every sentence says something that the one before did not, in words that the reader would use.",
        ),
        "example": (
            "Level of detail: instead of “it saves time”, say what takes less time, for whom, and how much.",
            "Level of detail: instead of “a great experience”, show one moment that a reader can picture.",
        ),
    },
    "summary": {
        "input": (
            "Read all of it first; the main point may be at the end, or never stated in one place.",
            "Separate what is reported as a fact from what somebody claims, and keep that difference.",
        ),
        "output": (
            "Form: first the main point in one sentence, then the supporting points, then what is decided or left "
            "open.",
            "Form: what happened, why it matters, and what comes next, in this order.",
        ),
        "quality": (
            "Quality: a reader of the summary alone would make the same decision as a reader of the whole.",
            "Quality: nothing important is missing, nothing is added, and each point can be found in the original.",
        ),
        "example": (
            "Level of detail: not “results were discussed”, but which result, how large, and compared with what.",
            "Level of detail: not “there were problems”, but which problem, whom it affects, and since when.",
        ),
    },
    "translation": {
        "input": (
            "Consider where the text appears and who reads it before choosing words.",
            "Read the whole text before the first sentence is translated, so that terms stay the same throughout.",
        ),
        "quality": (
            "Quality: it reads as if it had been written in the target language, and means exactly the same.",
            "Quality: idioms become idioms of the target language; terms are the ones that its speakers search for.",
        ),
        "example": (
            "Level of freedom: translate what is meant, not word by word; keep figures of speech only where they work.",
            "Level of freedom: sentences may be divided or joined where the target language would do so.",
        ),
    },
    "analysis": {
        "input": (
            "Begin with what the material is, what it covers, and what it does not.",
            "First say which question the analysis answers, and for which decision.",
        ),
        "output": (
            "Form: the conclusion first, then findings with their evidence, then what would change the conclusion.",
            "Form: for each finding what was seen, why it matters, how certain it is, and what to do.",
        ),
        "quality": (
            "Quality: findings are specific, have a size, and look at explanations that speak against them.",
            "Quality: someone else could check each statement with the same material and get the same result.",
        ),
        "example": (
            "Level of detail: not “sales are weak”, but where, since when, by how much, and compared with what.",
            "Level of detail: not “users are unhappy”, but which users, about what, and how that shows.",
        ),
    },
    "question answering": {
        "input": (
            "First make sure what is asked: a fact, a reason, a comparison or a way to do something.",
            "Begin with the terms of the question, and define those that are used in more than one way.",
        ),
        "output": (
            "Form: the direct answer first, then the reason, then one case where it does not hold, if there is one.",
            "Form: one sentence that answers the question, a short explanation, and what to look at next.",
        ),
        "quality": (
            "Quality: correct, specific, and clear to somebody who does not know the subject.",
            "Quality: each technical term is explained at its first use, and nothing is there that does not help.",
        ),
        "example": (
            "Add one concrete example with everyday things or real values that shows the answer at work.",
            "Explain it with one example from practice, and say what in it is typical.",
        ),
    },
    "extraction": {
        "input": (
            "Read the whole text; values can be in headings, footnotes and tables, and can be written in words.",
            "Go through the text from the beginning to the end, once for each kind of value.",
        ),
        "output": (
            "Form: one entry per item, with the value and the words of the text that it was taken from.",
            "Form: the same fields in the same order for every item, with empty ones shown as empty.",
        ),
        "quality": (
            "Quality: nothing is missing, nothing is there twice, and every value can be found in the text.",
            "Quality: complete before brief; similar items stay separate where the text keeps them separate.",
        ),
        "example": (
            "Example of what counts: a date is a value also where it is written as “next Monday”; copy it like that.",
            "Example of what counts: an amount belongs with its currency, a name with its title.",
        ),
    },
    "classification": {
        "input": (
            "Read the whole text before deciding; the last sentence can turn the meaning around.",
            "Look at what the text is for, not at single words: irony and quotations mislead.",
        ),
        "output": (
            "Form: the label, then the words of the text that decided it.",
            "Form: the label first, then how sure you are: high, medium or low.",
        ),
        "quality": (
            "Quality: texts that mean the same get the same label, however they are worded.",
            "Quality: another reader with the same labels would come to the same decision.",
        ),
        "example": (
            "Borderline cases: “not bad at all” is praise; “great, it broke again” is not.",
            "Borderline cases: where praise and complaint are mixed, the request at the end decides.",
        ),
    },
    "planning": {
        "input": (
            "Begin with the goal, the date, the people and the budget, as far as they are known.",
            "First list what is fixed, what can be changed, and what is not known yet.",
        ),
        "output": (
            "Form: for each step the result, who does it, how long it takes, and what has to be done before it.",
            "Form: phases with steps; each phase ends with something that can be shown.",
        ),
        "quality": (
            "Quality: the plan still works if one step takes twice as long, and the first step can begin today.",
            "Quality: steps are small enough to be finished in a day or two, and risky steps come early.",
        ),
        "example": (
            "Level of detail: not “do marketing”, but which message goes out, where, when, and who writes it.",
            "Level of detail: not “prepare everything”, but what has to lie ready, where, and by when.",
        ),
    },
    "conversation": {
        "input": (
            "Read the whole conversation before replying; what was said earlier is still valid.",
            "Find out first what the user wants to achieve; what is asked may be a step towards it.",
        ),
        "output": (
            "Form: first the answer or what you are doing, then what happens next, then one question if you need it.",
            "Form: reply in the way people write to each other: short paragraphs, no headings.",
        ),
        "quality": (
            "Quality: the user knows after each reply what was done and what they can do.",
            "Quality: it takes the user's situation seriously, is correct, and does not repeat itself.",
        ),
        "example": (
            "Example of the tone: “That is annoying, sorry. I have looked it up, and this is what we can do.”",
            "Example of the tone: “Good question. In short, yes, and it takes two steps.”",
        ),
    },
    "maths": {
        "input": (
            "Begin with what is given and what is sought, with units, and name the unknowns.",
            "First write the problem in symbols, and say what each symbol means.",
        ),
        "output": (
            "Form: given, sought, steps with the rule that each one uses, check, result.",
            "Form: each transformation on its own line, with the reason next to it.",
        ),
        "quality": (
            "Quality: every step follows from the one before, and special cases such as division by zero are "
            "looked at.",
            "Quality: a reader at school level can follow each step without paper.",
        ),
        "example": (
            "Check the result with one simple value, and show that check.",
            "Try a small case first, and use it to check the general result.",
        ),
    },
    "other": {
        "input": (
            "Begin with what is given, what is wanted, and for whom.",
            "First say in one line how you understand the request.",
        ),
        "output": (
            "Form: the result first, then how you arrived at it, then what to do next.",
            "Form: one idea per paragraph, the most important one first.",
        ),
        "quality": (
            "Quality: specific to this request, correct, and complete enough to be used without asking again.",
            "Quality: concrete rather than general, with names and sizes where they are known.",
        ),
        "example": (
            "Add one concrete example that shows what is meant.",
            "Where something is abstract, make it concrete with one short example.",
        ),
    },
}
"""By kind and detail, in several phrasings; `{it}` is what is to be made."""
