"""constraint-addition: specific constraints that the prompt lacks and its kind needs, none against one that it has.

A type of constraint that the prompt already has in any form is left alone: a prompt that asks for detail gets no limit
of length. All that is lacking is added at once, under a lead-in that is recognised, so the mutation is idempotent.
"""

from __future__ import annotations

from collections.abc import Mapping

from etude.problems.prompt.mutations.additions import addition
from etude.problems.prompt.mutations.edits import Edit
from etude.problems.prompt.mutations.task import Task
from etude.problems.prompt.mutations.wording import any_of

NAME = "constraint-addition"
TITLES = ("Constraints for the answer", "Conditions that the answer meets", "Limits of the answer")
LEADS = ("Keep to these constraints", "The answer has to meet these conditions", "Stay within these limits")
ADDED = any_of(*(each.lower() for each in (*TITLES, *LEADS)))

COUNT = r"(?:\d+|one|two|three|four|five|six|seven|eight|ten|twelve|a single|a few)"
TYPES = {
    "format": any_of(
        r"json|yaml|csv|xml|html|markdown|tables?|bullets?|bullet(?:ed)? (?:points?|lists?)|numbered|lists? of|as "
        r"a list",
        r"format(?:ted)?|schema|template|headings?|code blocks?|comma[- ]separated|one per line|one word|yes or no",
        r"sections?|columns?|fields?|keys?|diff|plain text|outline|structure[ds]?|step by step|final answer|in the "
        r"form",
        r"dialogue|haiku|sonnet|limerick|poem|tweet|headline|subject line|hashtags?|labels? alone|on its own line",
    ),
    "length": any_of(
        rf"{COUNT}[ -](?:words?|sentences?|paragraphs?|characters?|lines?|pages?|bullet|bullets|points?|items?|"
        rf"steps?|"
        rf"tokens?|days?|weeks?|months?|hours?|ideas?|examples?|options?|titles?|minutes?|stanzas?|reasons?|tips?|"
        rf"ways|questions?|findings)",
        r"short|shorter|brief|briefly|concise(?:ly)?|succinct|long|longer|in (?:more |great )?detail|detailed|"
        r"thorough|"
        r"comprehensive|exhaustive|in depth|in-depth|length|word (?:count|limit)|at most|no more than|at least|up "
        r"to \d+|"
        r"maximum|minimum|max|tl;?dr|one-liner|haiku|tweet|sonnet|limerick|one word|complete list|as many as",
    ),
    "scope": any_of(
        r"only|focus(?:ing|ed)?(?: on)?|limit(?:ed)?|restrict(?:ed)?|do not|don't|avoid|exclude|excluding|without|"
        r"ignore|"
        r"except|must not|never|nothing else|stick to|leave out|skip|no \w+ (?:code|libraries|comments|jargon)|alone|"
        r"not? (?:add|include|mention|change)|keep (?:it|the|to)|stay (?:on|within)",
    ),
    "sources": any_of(
        r"sources?|cit(?:e|es|ed|ing|ations?)|references?|based on|according to|evidence|quot(?:e|es|ing|ations?)",
        r"(?:from|in|using|use) (?:only )?(?:the|this|these|my|our|your) (?:\w+ )?(?:text|context|documents?|article|"
        r"passage|data|transcript|report|notes|sources?|material|knowledge base|message|email)",
        r"(?:provided|given|attached|following) (?:text|context|documents?|article|passage|data|information|"
        r"material)",
        r"by the text alone|well[- ]established",
    ),
    "language": any_of(
        r"(?:in|into|to|speak|use|american|british|plain|simple|from) (?:english|french|german|spanish|italian|"
        r"japanese|"
        r"chinese|portuguese|dutch|polish|russian|arabic|korean|turkish|hindi|swedish|mandarin)",
        r"language of|same language|english|language and (?:its )?version",
    ),
    "programming language": any_of(
        r"python|javascript|typescript|react|vue|svelte|angular|next\.?js|node(?:\.?js)?|sql|postgres(?:ql)?|mysql|"
        r"sqlite",
        r"java|c\+\+|c#|rust|golang|go|php|ruby|rails|bash|shell|html|css|tailwind|django|flask|fastapi|express|"
        r"kotlin",
        r"swift|docker(?:file)?|git|regex(?:es)?|regular expressions?|graphql|laravel|terraform|yaml|powershell|"
        r"perl|r|"
        r"language and (?:its )?version|cron|jquery|excel|\.net|scala|lua|nginx|kubernetes|webpack|vite|jest|pytest",
    ),
    "reader": any_of(
        r"audience|readers?|beginners?|experts?|child(?:ren)?|kids?|students?|tone|styles?|formal|informal|"
        r"friendly|casual|"
        r"professional|voice|year[- ]olds?|colleagues?|customers?|clients?|managers?|team|users?|developers?|"
        r"engineers?|"
        r"executives?|layman|lay person|persuasive|funny|humorous|warm|polite|playful|serious|empathetic|boss|"
        r"register|"
        r"friend|my (?:wife|husband|mother|father|teacher|landlord)|recruiters?|hiring|investors?|public|newcomers?",
    ),
}
"""What says that a prompt has a constraint of that type."""


def plan(task: Task) -> tuple[Edit, ...] | str:
    """The edits, or the reason why there are none."""
    if ADDED.search(task.words):
        return "its constraints were added already"
    lacking = lacking_types(task)
    if not lacking:
        return "it has the constraints that its kind needs"
    items = [_item(task, name) for name in lacking]
    at = TITLES.index(task.pick(TITLES))
    return (addition(task.document, LEADS[at], items, title=TITLES[at]),)


def present_types(words: str) -> tuple[str, ...]:
    """The types of constraints that words in lower case express."""
    return tuple(name for name, pattern in TYPES.items() if pattern.search(words))


def lacking_types(task: Task) -> tuple[str, ...]:
    """The types that the kind needs and the prompt does not have; none that its fixed form of answer rules out."""
    ruled_out = {"format", "length", "reader"} if task.is_strict or task.wants_json else set()
    if task.wants_json:
        ruled_out |= {"language"}
    wanted = NEEDED[task.kind] if task.is_english else ("answer language",)
    return tuple(
        name for name in wanted if name not in ruled_out and not (name in TYPES and TYPES[name].search(task.words))
    )


def _item(task: Task, name: str) -> str:
    if name == "answer language":
        return "Answer in the same language as the rest of this prompt."
    if name == "length" and task.kind == "writing":
        return task.pick(LENGTHS.get(task.deliverable, LENGTHS[""]))
    return task.pick(NEEDED[task.kind][name])


LENGTHS: Mapping[str, tuple[str, ...]] = {
    "": ("Keep it under 300 words.", "Use no more than 250 words."),
    "email": ("Keep the body under 150 words.", "Use no more than 120 words for the body."),
    "letter": ("Keep it to one page, about 300 words.", "Use no more than 350 words."),
    "reply": ("Keep the reply under 100 words.", "Use no more than five sentences."),
    "post": ("Write 600 to 900 words.", "Keep it between 500 and 800 words."),
    "article": ("Write 700 to 1,000 words.", "Keep it between 600 and 900 words."),
    "essay": ("Write 600 to 900 words.", "Keep it between 700 and 1,000 words."),
    "story": ("Write 500 to 800 words.", "Keep it under 800 words."),
    "poem": ("Write at most 20 lines.", "Keep it to four stanzas of four lines."),
    "caption": ("Use no more than two sentences.", "Keep it under 150 characters."),
    "description": ("Write 80 to 120 words.", "Keep it under 100 words."),
    "slogan": ("Use no more than eight words.", "Keep each version under eight words."),
    "tagline": ("Use no more than eight words.", "Keep each version under ten words."),
    "title": ("Keep it under 60 characters.", "Use no more than eight words."),
    "speech": ("Write for three minutes of speaking, about 400 words.", "Keep it under 450 words."),
    "bio": ("Write 60 to 100 words.", "Keep it under 80 words."),
    "review": ("Write 150 to 250 words.", "Keep it under 200 words."),
}
"""By what is to be written."""

NEEDED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "code": {
        "programming language": (
            "Use one programming language; name the language and its version in the first line.",
            "Choose the programming language that the context implies, and state the language and version.",
        ),
        "format": (
            "Put the complete code into one code block, with imports and with no part left out.",
            "Give the code first, in one code block that can be run as it is, then at most a few lines about it.",
        ),
        "scope": (
            "Do not add dependencies or features that were not asked for.",
            "Do not change names, signatures or behaviour beyond what the task asks for.",
        ),
    },
    "writing": {
        "reader": (
            "Write for an interested reader without special knowledge, in a natural, professional tone.",
            "Write in a clear, warm tone for readers who see the subject for the first time.",
        ),
        "length": (),
        "scope": (
            "Leave out clichés, filler and claims that cannot be checked.",
            "Make one main point; leave out everything that does not support it, and avoid superlatives.",
        ),
    },
    "summary": {
        "format": (
            "Begin with one sentence that holds the main point; then a list of bullet points, most important first.",
            "Use bullet points, each a full sentence, ordered by importance.",
        ),
        "length": ("Use no more than 120 words.", "Write at most five points of one sentence each."),
        "sources": (
            "Say nothing that the text does not say; keep its names, figures and dates exactly, based on the text "
            "alone.",
            "Use only what is in the given text, with its figures and names unchanged.",
        ),
    },
    "translation": {
        "format": (
            "Keep the structure of the original: the same format, paragraphs, lists and headings.",
            "Keep the format of the original: the same paragraphs, lists and line breaks.",
        ),
        "scope": (
            "Do not translate names, code, links or placeholders, and add no comments of your own.",
            "Leave names, numbers, code and links unchanged, and do not add explanations.",
        ),
        "reader": (
            "Keep the tone and the register of the original.",
            "Translate into natural language for native readers, as formal or informal as the original.",
        ),
    },
    "analysis": {
        "format": (
            "List the findings by importance, each with its evidence and what follows from it, under a short heading.",
            "Use three sections: findings, evidence, recommendation.",
        ),
        "length": (
            "Give at most seven findings, each in no more than two sentences.",
            "Use no more than 400 words.",
        ),
        "sources": (
            "Base every statement on the given data, and mark what is your own assumption.",
            "Name the evidence for each finding, and keep facts and interpretation separate.",
        ),
        "scope": (
            "Limit it to what changes a decision; leave out general remarks.",
            "Do not describe what is obvious; focus on what is surprising or can be acted on.",
        ),
    },
    "question answering": {
        "length": (
            "Answer in the first sentence; use no more than 150 words in all.",
            "Keep the answer under 120 words, with the direct answer first and at most two reasons.",
        ),
        "sources": (
            "Use well-established facts, and mark what is disputed or uncertain.",
            "Keep to well-established facts, and say where experts disagree.",
        ),
        "scope": (
            "Answer what was asked; leave out background that the answer does not need.",
            "Do not repeat the question, and leave out introductions.",
        ),
    },
    "extraction": {
        "format": (
            "Give one line per item, in the form name: value, in the order of the text.",
            "Return JSON with one key per kind of item, and a list of values for each.",
        ),
        "scope": (
            "Copy every value exactly as it is written; do not correct, convert or complete it.",
            "Keep the wording of the text for every value, and leave out duplicates.",
        ),
        "sources": (
            "Take values only from the given text, and not from general knowledge.",
            "Use only the given text; general knowledge adds no values.",
        ),
    },
    "classification": {
        "format": (
            "Answer with the label alone, written exactly as it is given, on its own line.",
            "Give the label on its own line first, and after it one sentence with the reason.",
        ),
        "scope": (
            "Choose exactly one label, and only from those that are given.",
            "Do not invent labels, and do not give more than one.",
        ),
        "sources": (
            "Decide by the text alone, not by who may have written it.",
            "Base the decision on words of the text that you could quote.",
        ),
    },
    "planning": {
        "format": (
            "Use a table with one row per step: what, when, how long, and what it depends on.",
            "Use a numbered list in the order of time; for each step, say how long it takes and what has to be "
            "ready before.",
        ),
        "length": ("Use at most ten steps.", "Use no more than eight steps, each in one or two lines."),
        "scope": (
            "Do not assume resources that were not named, and leave out steps without a result.",
            "Limit the plan to what was asked, and keep the time and budget that are given.",
        ),
    },
    "conversation": {
        "length": (
            "Reply in at most three sentences, unless the user asks for more.",
            "Keep each reply under 80 words, unless more is asked for.",
        ),
        "reader": (
            "Use a friendly, plain tone without jargon.",
            "Be warm and direct in tone, and use the user's own words.",
        ),
        "scope": (
            "Stay within this role, ask at most one question per reply, and do not promise what you cannot do.",
            "Do not go beyond this role, and never ask for passwords or payment details.",
        ),
        "language": (
            "Answer in the language of the user's last message.",
            "Reply in the same language that the user writes in.",
        ),
    },
    "maths": {
        "format": (
            "Show each step on its own line, and end with a line that holds the final answer alone.",
            "Structure it as: given, steps, check, final answer.",
        ),
        "scope": (
            "Keep to exact values until the end, and do not round before the last step.",
            "Name every rule that is used, and do not skip steps that change the form of an expression.",
        ),
    },
    "other": {
        "format": (
            "Structure the answer with short headings or bullet points where there is more than one point.",
            "Begin with the result in one sentence; put details into a list of bullet points.",
        ),
        "length": ("Use no more than 200 words.", "Keep it under 250 words."),
        "scope": (
            "Do what was asked and nothing else; leave out introductions and repetitions.",
            "Focus on what was asked, and leave out general advice.",
        ),
    },
}
"""By kind, the types of constraints that an answer of that kind goes wrong without, each in several phrasings."""
