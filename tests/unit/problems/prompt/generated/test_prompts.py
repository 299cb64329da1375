from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import etude.problems.prompt
from etude.problems.prompt.generated import prompts
from etude.problems.prompt.generated.prompts import DEFECTS, iterate_texts, kinds, make_prompts, needs, remaining

FOLDER = Path(etude.problems.prompt.__file__).parent
READERS = [
    *sorted((FOLDER / "mutations").glob("*.py")),
    *(FOLDER / name for name in ("kinds.py", "features.py", "sentence_features.py", "masks.py", "rewards.py")),
]
"""What reads, mutates and rewards prompts by rules."""
WORD = re.compile(r"[a-z]+")


def test_the_same_seed_gives_the_same_prompts() -> None:
    assert make_prompts(20, 3) == make_prompts(20, 3)
    assert make_prompts(20, 3) != make_prompts(20, 4)


def test_all_defects_occur_alone_together_and_not_at_all() -> None:
    made = make_prompts(600, 0)
    assert {defect for one in made for defect in one.defects} == set(DEFECTS)
    assert {len(one.defects) for one in made} == {0, 1, 2, 3}
    assert all(needs(one.kind)[defect] > 0 for one in made for defect in one.defects)


def test_held_out_templates_and_unseen_kinds_are_separate() -> None:
    bare = {re.sub(r"\W+", " ", text) for text in iterate_texts()}
    assert len(bare) == len(list(iterate_texts()))  # no template stands in both parts
    train, held_out = make_prompts(400, 0), make_prompts(400, 0, split="held out")
    shared = {p for one in train for p in one.needed + one.noise} & {
        p for one in held_out for p in one.needed + one.noise
    }
    assert not shared
    assert {one.kind for one in train} == set(kinds(seen=True))
    assert {one.kind for one in make_prompts(200, 0, split="held out", seen=False)} == set(kinds(seen=False))


def test_what_belongs_to_a_prompt_is_in_its_text() -> None:
    for one in make_prompts(200, 1):
        assert remaining(one.text, one.needed) == 1
        assert remaining(one.text, one.noise) == (1 if one.noise else 0)
        assert "{" not in re.sub(r"`[^`]*`", "", one.text)


def test_a_sentence_that_is_pasted_twice_counts_twice() -> None:
    assert remaining("Hello. Hello. Do it.", ("Hello.", "Hello.")) == 1
    assert remaining("Hello. Do it.", ("Hello.", "Hello.")) == 0.5


def test_the_generator_imports_nothing_that_reads_prompts() -> None:
    tree = ast.parse(Path(prompts.__file__).read_text())
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not [module for module in modules if module.startswith("etude")]


def test_the_generator_and_what_reads_prompts_share_no_list_of_phrases() -> None:
    """English texts share some four words in a row by chance; a list that both have would be shared as a whole."""
    for path in READERS:
        own = {phrase for text in _texts(path) for phrase in _phrases(text)}
        assert not own or len(own & _made()) / len(own) < 0.03, (path.name, sorted(own & _made()))
    read = {phrase for path in READERS for text in _texts(path) for phrase in _phrases(text)}
    assert len(read & _made()) / len(_made()) < 0.01, sorted(read & _made())


def _made() -> set[str]:
    return {phrase for text in iterate_texts() for phrase in _phrases(text)}


def _texts(path: Path) -> Iterator[str]:
    if path.suffix != ".py":
        yield from path.read_text().splitlines()
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _phrases(text: str) -> Iterator[str]:
    words = WORD.findall(text.lower())
    for i in range(len(words) - 3):
        yield " ".join(words[i : i + 4])


@pytest.mark.parametrize("bank", ["full", "vague", "limits", "failure", "more"])
def test_three_of_ten_are_held_out(bank: str) -> None:
    for texts in prompts._world()[bank].values():
        assert len(texts) == 10
