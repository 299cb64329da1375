from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import etude
from etude.contracts.decision import DecisionRequest
from etude.problems.prompt.generated.prompts import make_prompts
from etude.problems.prompt.judge import Judge
from etude.problems.prompt.judged import FILE, as_examples, judge_all
from etude.problems.prompt.reader import STOP, Rules, State
from etude.problems.prompt.settings import PromptConfig
from tests.unit.problems.prompt.judge_server import JudgeServer, judging

RULES = Rules(max_mutations=2)
TEXTS = [one.text for one in make_prompts(6, 0)]
SMALL = {
    "prompt.encoder": "ngrams-64",
    "prompt.max_mutations": 2,
    "prompt_network.hidden": [16],
    "prompt_network.sentence_units": 8,
    "run.device": "cpu",
    "run.threads": 1,
}


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with judging() as found:
        yield found


def test_sequences_are_judged_once_even_if_the_run_is_interrupted(tmp_path: Path, server: JudgeServer) -> None:
    judge, config = Judge(f"{server.url}#j"), PromptConfig(samples=3, max_mutations=2)
    whole = judge_all(TEXTS, judge, config, RULES, tmp_path / "a" / FILE, seed=0)
    asked = len(server.asked)
    assert asked == 2 * sum(bool(one.mutations) for one in whole)
    lines = (tmp_path / "a" / FILE).read_bytes().splitlines(keepends=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / FILE).write_bytes(b"".join(lines[:7]) + lines[7][:9])  # the last line was cut off
    again = judge_all(TEXTS, judge, config, RULES, tmp_path / "b" / FILE, seed=0)
    assert again == whole
    assert len(server.asked) - asked == 2 * sum(bool(one.mutations) for one in whole[7:])
    assert (tmp_path / "b" / FILE).read_bytes() == b"".join(lines)


def test_the_number_of_judgements_has_a_limit(tmp_path: Path, server: JudgeServer) -> None:
    config = PromptConfig(samples=3, max_mutations=2, max_judgements=4)
    judge_all(TEXTS, Judge(f"{server.url}#j"), config, RULES, tmp_path / FILE, seed=0)
    assert len(server.asked) == 8


def test_judgements_are_logged_decisions_with_exact_propensities(tmp_path: Path, server: JudgeServer) -> None:
    config = PromptConfig(samples=3, max_mutations=2)
    judged = judge_all(TEXTS, Judge(f"{server.url}#j"), config, RULES, tmp_path / FILE, seed=0)
    examples = as_examples(TEXTS, judged, RULES)
    assert {one.context for one in examples} == {str(i) for i in range(len(TEXTS))}
    for example in examples:
        *_, last = example.trajectory.decisions
        assert last.action == STOP
        for decision in example.trajectory.decisions:
            masked = RULES.masked(State(prompt=decision.context["prompt"], done=frozenset(decision.context["done"])))
            assert not set(decision.eligible) & set(masked)
            assert decision.propensity == pytest.approx(1 / len(decision.eligible))


def test_a_policy_learns_what_the_judge_prefers(tmp_path: Path, server: JudgeServer) -> None:
    data = tmp_path / "prompts.jsonl"
    texts = [one.text for one in make_prompts(40, 1)]
    data.write_text("\n".join(map(json.dumps, texts)))
    run = etude.train(
        "prompt",
        out=tmp_path / "run",
        data=data,
        judge=f"{server.url}#j",
        settings={**SMALL, "prompt.samples": 3, "from_logs.dpo.epochs": 8, "from_logs.dpo.lr": 0.01},
    )
    policy = etude.load(run.folder.path)
    # The judge prefers longer prompts: what makes them longer is done, and what makes them shorter is not.
    done = [policy.decide(DecisionRequest(context=one.text)).action for one in make_prompts(40, 2)]
    assert sum(action not in (STOP, "context-reduction") for action in done) > 0.8 * len(done)
    asked = len(server.asked)
    etude.train(
        "prompt",
        out=tmp_path / "run",
        data=data,
        judge=f"{server.url}#j",
        settings={**SMALL, "prompt.samples": 3, "from_logs.dpo.epochs": 8, "from_logs.dpo.lr": 0.01},
    )
    assert len(server.asked) == asked  # a finished run asks nothing again
