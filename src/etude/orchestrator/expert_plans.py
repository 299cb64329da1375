"""The plans of experts in the catalogue of a log: which subtasks an instruction asks for, as they show it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import msgspec

from etude.contracts.errors import CheckpointError, RunError
from etude.learning.run_folder import RunFolder, find_runs
from etude.orchestrator.log import CATALOGUE_FILE, read_log
from etude.orchestrator.record import Execution
from etude.problems.catalogue import Catalogue, read_catalogue
from etude.problems.workflow.examples import Example, Targets, described, read_examples

MAX_NODES = 1000
MIN_SIMILARITY = 0.5
"""Share of words that two instructions have in common, from which on they are similar."""
STEM = 5
"""Letters by which a word is compared: summarise and summary are the same."""
STOP_WORDS = frozenset(
    (
        *("a", "all", "an", "and", "as", "at", "by", "for", "from", "in", "into", "is", "it", "its", "of", "on", "or"),
        *("please", "that", "the", "them", "then", "this", "to", "with"),
    )
)


class ExpertPlans:
    """Experts' examples by instruction."""

    def __init__(self, examples: Sequence[Example], catalogue: Catalogue) -> None:
        self.examples, self._catalogue = examples, catalogue
        self._same = {key_of(example.instruction): example for example in examples}
        self._words = [_words(example.instruction) for example in examples]
        self._having = defaultdict[str, list[int]](list)  # by word: examples
        for i, words in enumerate(self._words):
            for word in words:
                self._having[word].append(i)
        self._similar = lru_cache(maxsize=100_000)(self._find_similar)

    def same(self, instruction: str) -> Example | None:
        """The example of the same instruction."""
        return self._same.get(key_of(instruction))

    def left_out(self, instruction: str, task_types: Iterable[int]) -> list[str]:
        """Names of task types that are asked for and not in a plan.

        Of the same instruction, these are the expert's. Of a similar one, those of the expert's for which both
        instructions have the same words.
        """
        expert = self.same(instruction)
        if expert is not None:
            asked: Collection[int] = expert.targets.task_types
        else:
            asked = self._similar(key_of(instruction))
        return [self._catalogue.task_types[i].name for i in sorted(set(asked) - set(task_types))]

    def _find_similar(self, instruction: str) -> frozenset[int]:
        """Task types of the most similar instruction that this one asks for in the same words."""
        words = _words(instruction)
        common = Counter(i for word in words for i in self._having.get(word, ()))
        share = {i: count / (len(words) + len(self._words[i]) - count) for i, count in common.items()}
        best = max(share, key=lambda i: (share[i], -i), default=None)
        if best is None or share[best] < MIN_SIMILARITY:
            return frozenset()
        return frozenset(
            i
            for i in self.examples[best].targets.task_types
            if (naming := self._words[best] & _words(described(self._catalogue.task_types[i]))) and naming <= words
        )


def key_of(instruction: str) -> str:
    """The same for instructions that differ in case and blanks."""
    return " ".join(instruction.split()).casefold()


def _words(text: str) -> frozenset[str]:
    return frozenset(word[:STEM] for word in re.findall(r"[^\W_]+", text.casefold()) if word not in STOP_WORDS)


def read_experts(file: Path, catalogue: Catalogue, *, max_nodes: int | None = None) -> tuple[ExpertPlans, int]:
    """The examples of a training file in the ids of this catalogue, and how many cannot be used in it.

    The file's own catalogue is next to it; if there is none, it has names, or ids of this catalogue.
    """
    own_file = file.with_name(CATALOGUE_FILE)
    own = read_catalogue(own_file) if own_file.exists() else catalogue
    examples = read_examples(file, own, max_nodes=MAX_NODES)
    types = {entry.name: i for i, entry in enumerate(catalogue.task_types)}
    workers = {entry.name: i for i, entry in enumerate(catalogue.workers)}
    usable = []
    for example in examples:
        kinds = [types.get(own.task_types[i].name) for i in example.targets.task_types]
        known = tuple(kind for kind in kinds if kind is not None)
        if len(known) == len(kinds) and len(kinds) <= (max_nodes or MAX_NODES):
            chosen = [workers.get(own.workers[i].name) for i in example.targets.model_selections or ()]
            selections = tuple(worker for worker in chosen if worker is not None)
            targets = Targets(
                task_types=known,
                dependencies=example.targets.dependencies,
                model_selections=selections if selections and len(selections) == len(known) else None,
            )
            usable.append(msgspec.structs.replace(example, targets=targets))
    return ExpertPlans(usable, catalogue), len(examples) - len(usable)


def find_experts(logs: Path, runs: Path, folders: Iterable[Path]) -> Path | None:
    """The training file of the policy that logged, if its run and the file, unchanged, are found in these folders."""
    first = next((line for line in read_log(logs) if isinstance(line, Execution)), None)
    if first is None or not runs.is_dir():
        return None
    hashes = set(_training_data(first.policy.partition("+")[0], runs))
    if not hashes:
        return None
    for folder in dict.fromkeys(path.resolve() for path in folders):
        catalogue = folder / CATALOGUE_FILE
        for file in sorted(folder.glob("*.json")) if catalogue.is_file() else ():
            if file != catalogue and sha256(file.read_bytes() + catalogue.read_bytes()).hexdigest() in hashes:
                return file
    return None


def _training_data(version: str, runs: Path) -> Iterator[str]:
    """Hashes of what the run with this policy learned from, and the runs that it continues from."""
    known: dict[str, RunFolder] = {}
    for run in find_runs(runs):
        try:
            known[run.policy().version] = run
        except (RunError, CheckpointError):  # of an earlier Etude, or not trained far enough
            continue
    while (found := known.pop(version, None)) is not None:
        manifest = found.policy().manifest
        yield from manifest.data
        version = manifest.parent or ""
