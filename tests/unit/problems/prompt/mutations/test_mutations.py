"""The five mutations on prompts that people write."""

from __future__ import annotations

import pytest

from etude.problems.prompt.mutations import MUTATIONS, mutate, violations
from etude.problems.prompt.mutations.additions import insertion
from etude.problems.prompt.mutations.constraints import ADDED, LENGTHS, NEEDED, TYPES
from etude.problems.prompt.mutations.document import parse
from etude.problems.prompt.mutations.expansion import DETAILS
from etude.problems.prompt.mutations.fallbacks import AS_JSON, ITEMS, OPEN_QUESTION, PRESENT, STRICT, STRICT_LABEL

REDUCED = [
    ("Please write a function.", "Write a function."),
    ("Could you please write a function?", "Write a function."),
    ("Hi there! I hope you are doing well. I would like you to draft a plan. Thanks!", "Draft a plan."),
    ("I was wondering if you could summarise it, please?", "Summarise it?"),
    ("Answer it. Be concise and kind. Please be concise and kind.", "Answer it. Be concise and kind."),
    ("In order to win, make use of {tool}.", "To win, use {tool}."),
    ("Sort the list.\n\nThank you so much for your help!\n\nUse Python.", "Sort the list.\n\nUse Python."),
    (
        "Rules:\n\n- Please be brief\n- Be polite always\n- Be polite always.",
        "Rules:\n\n- Be brief\n- Be polite always",
    ),
    (
        "You are a helpful assistant.\n\nSort it by name.\n\nThanks!\n\nYou are a helpful assistant.",
        "You are a helpful assistant.\n\nSort it by name.",
    ),
    ("Run it.\n\n    some code\n\nThank you!  ", "Run it.\n\n    some code"),
    ("Antworte kurz und klar. Nenne Quellen. Antworte kurz und klar.", "Antworte kurz und klar. Nenne Quellen."),
    ("簡潔に答えてください。例を挙げてください。簡潔に答えてください。", "簡潔に答えてください。例を挙げてください。"),
]
NOT_REDUCED = [
    "Translate to French: Hello, could you please help me?",
    "Proofread this text.\n\nPlease send me the report. Thank you!",
    'Say "please and thank you" to the user.',
    "Use at most 100 words. Explain it. Use at most 100 words.",  # a number is not removed
    "Begin your answer with `Please`.",
    "Explain the phrase `in order to` in English.",
    "Begin with [how to make use of it](https://example.com).",
    "> Please quote me.\n\nRead the quote.",
    "```\nPlease keep\n```\n\nRun it.",
    "Input: the cat sat. Output: cat\n\nInput: the cat sat. Output: cat",
    "Return the JSON. Return just the JSON.",  # just is a constraint
    "Be careful with Anna Smith. Do it.",
    "{% if a %}Be brief and clear. {% else %}Be brief and clear. {% endif %}",
    "Thank you!",  # nothing else would be left
]


@pytest.mark.parametrize(("before", "after"), REDUCED)
def test_context_reduction_removes_what_says_nothing(before: str, after: str) -> None:
    assert mutate(before, "context-reduction").prompt == after


@pytest.mark.parametrize("text", NOT_REDUCED)
def test_context_reduction_keeps_what_may_matter(text: str) -> None:
    found = mutate(text, "context-reduction")
    assert found.prompt == text
    assert found.reason is not None


DECOMPOSED = [
    (
        "Read {document}, extract all dates and then sort them by year. Return a table.",
        ["1. Read {document}.", "2. Extract all dates.", "3. Sort them by year.", "", "Return a table."],
    ),
    (
        "Do this:\n- Read the log\n- Find the cause\n- Write a test",
        ["1. Read the log", "2. Find the cause", "3. Write a test"],
    ),
    (
        "Write a blog post about work covering benefits, the main challenges and useful tools.",
        ["1. benefits", "2. the main challenges", "3. useful tools."],
    ),
    ("Identify trends and write a summary of 200 words.", ["1. Identify trends.", "2. Write a summary of 200 words."]),
]


@pytest.mark.parametrize(("before", "lines"), DECOMPOSED)
def test_task_decomposition_numbers_the_prompts_own_parts(before: str, lines: list[str]) -> None:
    found = mutate(before, "task-decomposition")
    assert isinstance(found.prompt, str)
    assert found.prompt.split("\n")[-len(lines) :] == lines


@pytest.mark.parametrize(
    "text",
    [
        "Step 1: read it. Step 2: sort it.",
        "First read it, then sort it by name, finally print it.",
        "1. Read it\n2. Sort it",
        "Answer only with yes or no: is it blue?",
        "- Use JSON\n- Be brief",
        "Extract the names and test cases.",
        "Extract what `read it, then write it` does.",
        "Extract the dates, then sort them\n2. by year",
    ],
)
def test_what_has_steps_or_is_one_stays_whole(text: str) -> None:
    assert mutate(text, "task-decomposition").prompt == text


@pytest.mark.parametrize(("change", "words"), [("Write", "Write"), ("Fix the bug in", "change")])
def test_a_task_of_one_clause_gets_the_steps_of_its_kind(change: str, words: str) -> None:
    found = mutate(f"{change} the function that reverses a string in Python.", "task-decomposition", seed=1)
    assert words in str(found.prompt).partition("\n")[2]
    assert "the function" in str(found.prompt).partition("\n")[2] or words == "change"


@pytest.mark.parametrize("mutation", ["try-catch-style", "expansion", "constraint-addition"])
@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("Classify the ticket.\n\nTicket: {ticket}\nLabel:", "\n\nTicket: {ticket}"),
        ("Write an answer in English.\n\n{question}", "\n\n{question}"),
        ("You help people.\n\nContext:\n{{context}}\n\nQ: {{q}}\nA:", "\n\nContext:"),
        ("Write a poem for my boss.", ""),
        ("Summarise this text:\n\n{text}", ""),
        ("Fix it.\n\n```\nx\n```", ""),
        ("Do it well.\n\n### Response:", "\n\n### Response:"),
    ],
)
def test_additions_go_after_the_instructions_and_before_the_input(mutation: str, text: str, before: str) -> None:
    found = str(mutate(text, mutation).prompt)
    assert found != text
    at = text.index(before.lstrip("\n")) if before else len(text)
    assert found.startswith(text[:at])
    assert found.endswith(text[at:])
    assert insertion(parse(text)) == at


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("Do it.\n\n{% if a %}\n\nRead all of it well.\n\n{{ d }}\n\n{% endif %}", ""),
        ("  | a |\n|---|\n| 1 |\n\nOutput:", "Output:"),
        ("Do it.\n\n  {text}\n\n{more}", "{more}"),
    ],
)
def test_nothing_is_added_inside_a_template_block_or_before_an_indented_block(text: str, before: str) -> None:
    assert insertion(parse(text)) == len(text) - len(before)


def test_additions_are_written_as_the_prompt_is() -> None:
    headed = str(mutate("# Role\n\nYou help.\n\n## Task\n\nWrite it.\n\n## Rules\n\n* Be brief", "expansion").prompt)
    assert "\n\n## " in headed
    assert "\n\n* " in headed
    bold = str(mutate("**Task:**\nWrite it.\n\n**Rules:**\n\n+ Be brief", "expansion").prompt)
    assert "\n\n**" in bold.partition("brief")[2]
    windows = str(mutate("Write it.\r\nNow.\r\n\r\nDo it all.", "expansion").prompt)
    assert "\n" not in windows.replace("\r\n", "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Extract names from {email} and return JSON.", "null"),
        ("Classify the review. Answer with the label only.", "allowed answer"),
        ("Summarise {customer_review} for me.", "the customer review"),
        ("Solve 3x = 12.", "solution"),
        ("What is a monad?", "know"),
    ],
)
def test_fallbacks_fit_the_prompt(text: str, words: str) -> None:
    assert any(words in str(mutate(text, "try-catch-style", seed=seed).prompt) for seed in range(6))


def test_constraints_are_those_that_the_prompt_lacks() -> None:
    added = "".join(edit.added for edit in mutate("Write a detailed email to my boss.", "constraint-addition").edits)
    assert "words" not in added  # detailed is a length
    assert "tone" not in added  # the boss is a reader
    assert "word" in "".join(e.added for e in mutate("Write an email to my boss.", "constraint-addition").edits)
    german = mutate("Schreibe eine Zusammenfassung des Textes. Der Text ist für Kinder gedacht.", "constraint-addition")
    assert "same language" in str(german.prompt)


def test_seeds_choose_phrasings() -> None:
    for mutation in ("try-catch-style", "expansion", "constraint-addition", "task-decomposition"):
        found = {
            str(mutate("Write a function that reverses a string.", mutation, seed=seed).prompt) for seed in range(20)
        }
        assert len(found) >= 4


def test_every_phrasing_is_recognised_so_that_twice_is_once() -> None:
    for rows in (*ITEMS.values(), AS_JSON, STRICT, STRICT_LABEL, OPEN_QUESTION):
        for options in rows[:2]:
            for phrase in options:
                assert PRESENT.search(phrase.lower().format(it="the text")), phrase
    for types in NEEDED.values():
        for name, options in types.items():
            for phrase in options:
                assert TYPES[name].search(phrase.lower()), (name, phrase)
    assert all(TYPES["length"].search(phrase.lower()) for options in LENGTHS.values() for phrase in options)
    assert ADDED.search("keep to these constraints: be brief.")


def test_every_kind_has_phrasings_of_its_own() -> None:
    from etude.problems.prompt.kinds import KINDS

    assert set(KINDS) == set(ITEMS) == set(NEEDED)
    assert set(KINDS) < set(DETAILS)


def test_all_five_in_a_row_are_reverted_one_by_one() -> None:
    first = "Hello! Please write a function that reads {file}, sorts it and prints 3 lines. Thanks!"
    done = []
    prompt: object = first
    for mutation in MUTATIONS:
        done.append(mutate(prompt, mutation))  # type: ignore[arg-type]
        prompt = done[-1].prompt
    assert sum(each.changed for each in done) >= 4
    for each in reversed(done):
        assert each.prompt == prompt
        prompt = each.revert()
    assert prompt == first


@pytest.mark.parametrize(
    "rest",
    [
        "\n[b]: https://c.d",
        " [b]: https://c.d",
        " - and so on",
        " # of items",
        " > than before",
        " 1. of many",
        " ``` x",
        " ~~~",
    ],
)
def test_no_part_becomes_a_block_of_another_kind(rest: str) -> None:
    text = f"See [b].\n\n[b]: https://c.d\n\nRead the text and sort the words.{rest}"
    found = mutate(text, "task-decomposition").prompt
    assert not violations(text, found)
    assert [block.kind for block in parse(str(found)).blocks if block.kind not in ("paragraph", "reference")] == []


def test_prose_after_the_steps_is_a_paragraph_of_its_own() -> None:
    found = str(mutate("Read the text and sort the words. **Briefly.** [b] is a name.", "task-decomposition").prompt)
    assert found.endswith("2. Sort the words.\n\n**Briefly.** [b] is a name.")
