"""The parts of `etude demo`: its users, its project and what it prints. tests/e2e runs all of it."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from etude.bootstrap.clock import now
from etude.bootstrap.experience import config_here, experience, make_collector
from etude.bootstrap.loop import settings_here as loop_settings
from etude.bootstrap.release import settings_here
from etude.cli.demo_loop import INVERTED, SLOT, _project, promotion_text, rollback_text, sentence_of, settings
from etude.cli.demo_traffic import MODELS, START, Application, SimulatedClock, offered, queries
from etude.contracts.query import Where
from etude.contracts.release import Action
from etude.evidence.eprocess import EvidenceConfig
from etude.experience.definitions import read_definition
from etude.release.start import CanaryConfig
from tests.unit.release.traffic import Traffic


def test_the_demo_is_a_project_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETUDE_EXPERIENCE__EXPLORE", "0")
    here = Path.cwd()
    with _project(tmp_path / "demo", 2_000) as clock:
        assert Path.cwd() == tmp_path / "demo"
        assert config_here().explore == 1
        assert loop_settings().loop.threshold == 2_000
        clock.next_query()
        assert now() == clock()
        assert START < clock() < START + timedelta(minutes=1)
    assert Path.cwd() == here
    assert now() > START - timedelta(days=365)
    assert os.environ["ETUDE_EXPERIENCE__EXPLORE"] == "0"
    assert abs((now() - START).total_seconds()) > 60


def test_its_proofs_are_those_of_every_release(tmp_path: Path) -> None:
    with _project(tmp_path / "demo", 2_000):
        canary = settings_here().release.canary
    usual = CanaryConfig()
    assert canary.evidence == EvidenceConfig() == usual.evidence
    for name in ("stages", "window_s", "shadow_answers", "over_minutes", "when_undecided", "strategies"):
        assert getattr(canary, name) == getattr(usual, name), name
    assert set(settings(2_000)["release"]["gates"]) == {"first_needs_evidence"}


def test_users_ask_through_task_decide(tmp_path: Path) -> None:
    with _project(tmp_path / "demo", 2_000) as clock:
        collector = make_collector(config_here())
        users = Application(collector, clock, queries(0))
        users.serve(60)
        collector.bus.close()
        with experience() as opened:
            rows = list(opened.store.scan(Where(problem=SLOT), version=1))
            stored = [opened.store.detail(row.summary.id) for row in rows]
    assert users.answers == len(stored) == 60
    found = [detail for detail in stored if detail is not None]
    assert {d.trajectory.decisions[0].action for d in found} == set(MODELS)
    assert all(d.trajectory.decisions[0].propensity == pytest.approx(1 / 3) for d in found)
    assert all(d.rewards for d in found)
    assert sum(d.trajectory.outcome.success is True for d in found) == sum(users.solved.values())
    late = [d for d in found if d.trajectory.outcome.error]
    assert late
    assert not any(d.trajectory.outcome.success for d in late)
    (version,) = users.chosen
    assert users.solved_share(version) == users.solved[version] / 60


def test_queries_do_not_end_and_follow_their_seed() -> None:
    first, again, other = (queries(seed) for seed in (0, 0, 1))
    texts = [[next(source).text for _ in range(20)] for source in (first, again, other)]
    assert texts[0] == texts[1] != texts[2]
    assert [model["name"] for model in offered()] == list(MODELS)
    assert SimulatedClock()() == START


def test_the_wrong_reward_pays_for_failing() -> None:
    (component,) = read_definition(INVERTED, origin="inverted.yaml").components
    assert component.terms["success"] < 0


def test_releases_in_words(tmp_path: Path) -> None:
    from etude.bootstrap.release_pages import release_facts

    traffic = Traffic(tmp_path, success=(0.3, 0.9))
    traffic.start()
    entries = traffic.until_decided(error=dict.fromkeys(traffic.versions, 0.1))
    advanced = next(entry for entry in entries if entry.action is Action.ADVANCED)
    assert sentence_of(advanced).startswith(f"{traffic.new} advanced to 25% of the traffic: after ")
    facts = release_facts(traffic.registry, SLOT)
    look = facts.at_decision()
    assert look is not None
    assert f"promoted on proof after {look.units:,} units" in promotion_text(facts)
    assert "+0." in promotion_text(facts)
    assert f"{look.candidates:,} of them its own" in rollback_text(facts)
    assert "on its first errors, before the window of any unit" in rollback_text(replace(facts, looks=()))
