"""Kinds of prompts, on prompts that were labelled by hand."""

from __future__ import annotations

import pytest

from etude.problems.prompt.kinds import AT_WORD, KINDS, NUMBER, WORD, kind_of, kind_probabilities

LABELLED = [
    ("Write a function that reverses a string.", "code"),
    ("hey can you fix this bug pls, my react component re-renders all the time", "code"),
    ("write sql query to get top 5 customers by revenue per country last year", "code"),
    ("Refactor this class to use dependency injection.\n\n```ts\nclass A {}\n```", "code"),
    ("Write unit tests for the login endpoint", "code"),
    ("Create a landing page with Next.js and Tailwind for a coffee shop.", "code"),
    ("Give me a regex that matches ISO dates", "code"),
    ("Why does `useEffect` run twice in React 18? Here is my code:", "code"),
    ("Write a polite email to my landlord about the broken heating.", "writing"),
    ("Draft a blog post about remote work for HR managers.", "writing"),
    ("Rewrite this paragraph so that it sounds more formal: {text}", "writing"),
    ("Generate 5 catchy headlines for our spring sale", "writing"),
    ("Write a short story about a robot that learns to paint.", "writing"),
    ("Write a product description for {product_name}.", "writing"),
    ("Summarize the following article in 3 bullet points:\n\n{article}", "summary"),
    ("TL;DR this thread", "summary"),
    ("What are the key takeaways of this meeting? {transcript}", "summary"),
    ("Translate the following UI strings from English to German.", "translation"),
    ("Übersetzen: translate this text into French", "translation"),
    ("Analyze our Q3 sales data and compare it with Q2.", "analysis"),
    ("Compare Postgres and MySQL for a small team: pros and cons", "analysis"),
    ("Evaluate the risks of this contract. {contract}", "analysis"),
    ("What is the difference between a process and a thread?", "question answering"),
    ("Explain quantum entanglement to a 10 year old", "question answering"),
    (
        "Answer the user's question using only the context below.\n\nContext: {context}\n\nQuestion: {q}",
        "question answering",
    ),
    ("How does photosynthesis work?", "question answering"),
    ("Extract the name, email and phone number from the text below and return them as JSON.", "extraction"),
    ("List all dates and amounts in this invoice: {invoice}. Extract the total, too.", "extraction"),
    ("Classify the sentiment of the review as positive, negative or neutral.", "classification"),
    ("Is this comment spam? Label the text as spam or ham.", "classification"),
    ("Categorize each support ticket into one of the following: billing, bug, other.", "classification"),
    ("Plan a 5-day trip to Lisbon for two adults and a toddler", "planning"),
    ("Create a 12-week marathon training plan for a beginner", "planning"),
    ("Make a project roadmap for our app launch", "planning"),
    ("You are a friendly support agent for Acme. Help the customers with their orders.", "conversation"),
    ("I want you to act as an interviewer. Ask me questions one by one.", "conversation"),
    ("Solve for x: 3x + 5 = 20", "maths"),
    ("Prove that the square root of 2 is irrational; calculate the first 3 digits", "maths"),
    ("If a train travels 120 km in 1.5 hours, calculate its average speed in 2 units.", "maths"),
    ("Give me 10 ideas for a birthday party.", "other"),
    ("Hallo, wie geht es dir heute?", "other"),
]
MIN_CORRECT = 0.9


@pytest.mark.parametrize(
    "text", ["", "x", "{question}", "こんにちは", "```py\nwrite\n```", *(text for text, _ in LABELLED)]
)
def test_probabilities_are_of_every_kind_and_add_up(text: str) -> None:
    found = kind_probabilities(text)
    assert tuple(found) == KINDS
    assert sum(found.values()) == pytest.approx(1)
    assert found[kind_of(text)] == max(found.values())


def test_most_labelled_prompts_get_their_kind() -> None:
    wrong = [(text, kind_of(text), label) for text, label in LABELLED if kind_of(text) != label]
    assert len(wrong) <= (1 - MIN_CORRECT) * len(LABELLED), wrong


def test_every_kind_is_found() -> None:
    assert {kind_of(text) for text, _ in LABELLED} == set(KINDS)


def test_code_in_a_fence_is_no_evidence() -> None:
    text = "Summarise this.\n\n```python\ndef write_function_class(): ...\n```"
    assert kind_of(text) == "summary"


def test_the_end_of_a_long_prompt_counts() -> None:
    assert kind_of("lorem ipsum " * 5000 + "\n\nTranslate the text above into French.") == "translation"


def test_evidence_is_by_words_that_a_text_in_lower_case_can_have() -> None:
    assert all(WORD.fullmatch(word) and word == word.lower() for word in AT_WORD)
    assert [word for word in AT_WORD if word.isdecimal()] == [NUMBER]


def test_evidence_is_a_whole_word_and_what_follows_it() -> None:
    assert kind_of("Debug my react page") == "code" != kind_of("Undebug my reactive pages")
    assert kind_probabilities("Plan a trip")["planning"] > kind_probabilities("Planet a trip")["planning"]
    assert kind_probabilities("what is 12 * 3")["maths"] > kind_probabilities("what is 12 or 3")["maths"]


def test_repeated_evidence_counts_four_times_and_once_more_at_the_beginning() -> None:
    much = [kind_probabilities("it is " + "classify " * count)["classification"] for count in (1, 4, 5, 50)]
    assert much[0] < much[1] == much[2] == much[3]
    assert kind_probabilities("classify it")["classification"] > much[0]
