"""Reward definitions, computing, revising, rescoring, explaining."""

from __future__ import annotations

import math
import time as clock
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.adapters.sqlite import SqliteStore
from etude.contracts.errors import ConfigError, StoreError
from etude.contracts.query import Where
from etude.contracts.reward import Component, Reward
from etude.contracts.store import ExperienceStore, Stored
from etude.contracts.subjects import decode, encode
from etude.contracts.trajectory import Feedback, Outcome, Rating, Trajectory, Turn
from etude.experience.definitions import (
    BUILT_IN,
    DEFINITIONS,
    ComponentDefinition,
    RewardDefinition,
    add_definition,
    definitions,
    find_definition,
    read_definition,
)
from etude.experience.reward_checks import read_samples
from etude.experience.rewards import BATCH, Rewarder, explain, mean_rating, rescore

START = datetime(2026, 11, 1, tzinfo=UTC)
BALANCED, EXECUTION, AUDITED = BUILT_IN[1], BUILT_IN[2], BUILT_IN[3]


def trajectory(i: int = 0, *, said: tuple[Rating, ...] = (), turns: int = 0, **known: Any) -> Trajectory:
    metadata = known.pop("metadata", None)
    outcome: dict[str, Any] = {
        "success": True,
        "cost_usd": 0.02,
        "latency_ms": 1500.0,
        "quality": {"tests": 0.8, "judge": 0.6},
    }
    return Trajectory(
        id=f"t{i}",
        time=START + timedelta(seconds=i),
        task=f"task {i % 5}",
        problem=known.pop("problem", "workflow"),
        turns=tuple(Turn() for _ in range(turns)),
        outcome=Outcome(**(outcome | known)),
        feedback=said,
        metadata=metadata,
    )


def random_trajectory(i: int, random: Random) -> Trajectory:
    quality = {"tests": random.random()} if random.random() < 0.6 else None
    said = (Rating(stars=random.randint(1, 5)),) if random.random() < 0.3 else ()
    known = {"cost_usd": random.expovariate(100), "latency_ms": random.expovariate(1 / 2000), "quality": quality}
    return trajectory(i, success=random.random() < 0.7, said=said, turns=random.randint(0, 4), **known)


def definition(*components: ComponentDefinition, version: int = 9) -> RewardDefinition:
    return RewardDefinition(version=version, name="own", components=components)


def part(reward: Reward, name: str) -> Component:
    return next(component for component in reward.components if component.name == name)


def raw(source: str, given: Trajectory, **more: Any) -> float | None:
    own = definition(ComponentDefinition(name="it", source=source, weight=1.0, **more))
    return Rewarder(own).reward(given, (), time=START).components[0].raw


def thumbs(i: int, way: str, of: int = 0) -> Feedback:
    return Feedback(id=f"f{i}", time=START, trajectory_id=f"t{of}", thumbs=way)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExperienceStore]:
    made = SqliteStore(tmp_path / "experience.sqlite")
    yield made
    made.close()


class TestDefinitions:
    def test_the_document_is_built_in(self) -> None:
        assert BALANCED.shares == {"completion": 0.40, "efficiency": 0.20, "quality": 0.15, "feedback": 0.25}
        assert [c.normalise for c in BALANCED.components] == ["none", "zscore", "none", "none"]
        assert [c.normalise for c in AUDITED.components] == ["none", "minmax", "none", "none", "none"]
        assert AUDITED.shares["execution"] == 0.0
        assert {version: built.version for version, built in BUILT_IN.items()} == {1: 1, 2: 2, 3: 3}

    def test_hashes_of_what_is_built_in_never_change(self) -> None:
        """Rewards are stored with them: who changes a definition gives it another version."""
        assert {version: built.hash for version, built in BUILT_IN.items()} == {
            1: "a3880bbe4256cf8a",
            2: "617c3b036c1865b5",
            3: "7ddc7e8b787534a9",
        }

    def test_a_store_keeps_its_definition_when_a_built_in_one_changes(self, store: ExperienceStore) -> None:
        """As stores have it that were made when efficiency had no floor."""
        tree = msgspec.to_builtins(BALANCED)
        for component in tree["components"]:
            del component["floor"]
        store.put(DEFINITIONS, "000000001", msgspec.json.encode(tree))
        kept = find_definition(store, 1)
        assert kept.hash == "4684931f5438672c"
        assert [component.floor for component in kept.components] == [0.0] * 4
        add_definition(store, kept)

    def test_weights_are_shares_of_their_sum(self) -> None:
        own = definition(
            ComponentDefinition(name="a", source="completion", weight=3.0),
            ComponentDefinition(name="b", source="quality", weight=1.0),
        )
        assert own.shares == {"a": 0.75, "b": 0.25}

    def test_a_definition_survives_json_and_its_hash_with_it(self) -> None:
        for built in BUILT_IN.values():
            read = msgspec.json.decode(msgspec.json.encode(built), type=RewardDefinition)
            assert read == built
            assert read.hash == built.hash
        assert msgspec.structs.replace(BALANCED, description="in other words").hash == BALANCED.hash
        assert msgspec.structs.replace(BALANCED, name="other").hash != BALANCED.hash

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"source": "complettion"}, "unknown source 'complettion': did you mean 'completion'"),
            ({"source": "quality."}, "unknown source 'quality.'"),
            ({"source": "feedback", "normalise": "zscore"}, "feedback cannot be normalised"),
            ({"weight": 0}, "the weights sum to 0: give a component a weight above 0"),
            ({"weight": -1}, "Expected `float` >= 0"),
            ({"normalise": "rank"}, "Invalid enum value 'rank'"),
            ({"wieght": 1}, "unknown field `wieght`.*did you mean 'weight'"),
            ({"terms": {"cost": 1}}, "unknown term 'cost' of completion: there are none"),
            ({"source": "execution", "terms": {"succes": 1}}, "unknown term 'succes' .*did you mean 'success'"),
            ({"source": "execution", "terms": {"cost_unit_usd": 0}}, "term cost_unit_usd is 0"),
            ({"window": 3}, "Expected `int` >= 10"),
            ({"floor": 0.1}, r"floor is 0\.1, but nothing is compared: set `normalise`"),
            ({"floor": -1, "normalise": "zscore"}, "Expected `float` >= 0"),
        ],
    )
    def test_what_is_wrong_is_said(self, change: dict[str, Any], message: str) -> None:
        tree = {
            "version": 7,
            "name": "own",
            "components": [{"name": "a", "source": "completion", "weight": 1} | change],
        }
        with pytest.raises(ConfigError, match=f"my.yaml: .*{message}"):
            read_definition(tree, origin="my.yaml")

    def test_names_are_unique(self) -> None:
        twice = ComponentDefinition(name="a", source="completion", weight=1.0)
        with pytest.raises(ConfigError, match="'a' occurs twice"):
            definition(twice, twice)

    def test_a_version_says_one_thing_for_ever(self, store: ExperienceStore) -> None:
        own = definition(ComponentDefinition(name="a", source="completion", weight=1.0))
        add_definition(store, own)
        add_definition(store, own)
        assert definitions(store) == dict(BUILT_IN) | {9: own}
        assert find_definition(store, 9) == own
        other = definition(ComponentDefinition(name="a", source="quality", weight=1.0))
        with pytest.raises(ConfigError, match="give it the version 10"):
            add_definition(store, other)
        with pytest.raises(ConfigError, match="never changes"):
            add_definition(store, msgspec.structs.replace(BALANCED, name="mine"))
        with pytest.raises(ConfigError, match="no reward definition of version 4: there are 1, 2, 3, 9"):
            find_definition(store, 4)

    def test_a_definition_of_a_newer_etude_is_refused(self, store: ExperienceStore) -> None:
        store.put(DEFINITIONS, "000000007", b'{"version":7,"name":"x","components":[],"more":1}')
        with pytest.raises(StoreError, match="upgrade"):
            definitions(store)


class TestSources:
    @pytest.mark.parametrize(
        ("known", "expected"),
        [
            ({"success": True}, 1.0),
            ({"success": True, "subtasks": 4, "subtasks_done": 1}, 1.0),
            ({"success": False}, 0.0),
            ({"success": False, "subtasks": 4, "subtasks_done": 3}, 0.375),
            ({"success": False, "subtasks": 4, "subtasks_done": 9}, 0.5),
            ({"success": False, "subtasks": 4}, 0.0),
            ({"success": False, "subtasks": 0, "subtasks_done": 0}, 0.0),
            ({"success": None, "subtasks": 4, "subtasks_done": 4}, None),
        ],
    )
    def test_completion(self, known: dict[str, Any], expected: float | None) -> None:
        assert raw("completion", trajectory(**known)) == expected

    def test_execution_is_the_documents(self) -> None:
        given = trajectory(success=True, cost_usd=0.03, latency_ms=2500.0, subtasks=4, subtasks_done=4)
        assert raw("execution", given) == pytest.approx(10 - 0.1 * 3 - 0.01 * 2.5 + 0.1 * 4)
        assert raw("execution", given, terms={"latency_unit_ms": 1.0}) == pytest.approx(10 - 0.3 - 25 + 0.4)
        assert raw("execution", trajectory(success=None)) is None
        bare = trajectory(success=False, cost_usd=None, latency_ms=None)
        found = Rewarder(EXECUTION).reward(bare, (), time=START)
        assert found.total == 0.0
        assert found.components[0].why == "failed, counted as 0: cost, latency, subtasks"

    def test_quality_and_metadata(self) -> None:
        given = trajectory(metadata={"lines": 12, "ok": True, "name": "x"})
        assert raw("quality", given) == pytest.approx(0.7)
        assert raw("quality.tests", given) == 0.8
        assert raw("quality.linter", given) is None
        assert raw("metadata.lines", given) == 12.0
        assert raw("metadata.ok", given) == 1.0
        assert raw("metadata.name", given) is None
        assert raw("metadata.lines", trajectory()) is None
        assert raw("quality", trajectory(quality={})) is None

    @pytest.mark.parametrize("number", [float("inf"), float("nan"), 1e200, 10**400])
    def test_a_number_beyond_measure_is_missing(self, number: float) -> None:
        for normalise in ("none", "zscore"):
            assert raw("metadata.x", trajectory(metadata={"x": number}), normalise=normalise) is None
        costly = Trajectory(
            id="a", time=START, task="x", problem="workflow", turns=(Turn(cost_usd=1e308), Turn(cost_usd=1e308))
        )
        assert raw("efficiency", costly, terms={"turns": 0.0}) is None

    def test_said(self) -> None:
        assert mean_rating([Rating(thumbs="up")], [thumbs(1, "down")]) == 0.5
        assert mean_rating([Rating(stars=5), Rating(stars=2)]) == 0.625
        assert mean_rating([Rating(thumbs="up", stars=1, comment="odd")]) == 0.5
        assert mean_rating([Rating(comment="words only")]) is None
        assert mean_rating() is None

    @given(st.floats(0, 1e3), st.floats(0, 1e7), st.integers(1, 50))
    def test_less_effort_is_more_efficient(self, cost_usd: float, latency_ms: float, turns: int) -> None:
        given = trajectory(cost_usd=cost_usd, latency_ms=latency_ms, turns=turns)
        found = raw("efficiency", given)
        assert found is not None
        assert found <= 0
        for more in (
            trajectory(cost_usd=cost_usd + 0.01, latency_ms=latency_ms, turns=turns),
            trajectory(cost_usd=cost_usd, latency_ms=latency_ms + 100, turns=turns),
            trajectory(cost_usd=cost_usd, latency_ms=latency_ms, turns=turns + 1),
        ):
            worse = raw("efficiency", more)
            assert worse is not None
            assert worse < found

    def test_efficiency_is_minus_the_mean_logarithm_of_what_is_known(self) -> None:
        cost, latency, turns = math.log(101), math.log(10), math.log(4)
        known: dict[str, Any] = {"cost_usd": 0.01, "latency_ms": 900.0}
        assert raw("efficiency", trajectory(**known, turns=3)) == pytest.approx(-(cost + latency + turns) / 3)
        assert raw("efficiency", trajectory(**known)) == pytest.approx(-(cost + latency) / 2)
        weighed = {"cost": 3.0, "turns": 0.0}
        assert raw("efficiency", trajectory(**known, turns=3), terms=weighed) == pytest.approx(
            -(3 * cost + latency) / 4
        )
        assert raw("efficiency", trajectory(cost_usd=0.0, latency_ms=0.0)) == 0.0
        assert raw("efficiency", trajectory(cost_usd=None, latency_ms=None)) is None

    def test_efficiency_takes_the_turns_costs_where_all_tell(self) -> None:
        outcome = Outcome()
        complete = Trajectory(
            id="a",
            time=START,
            task="x",
            problem="workflow",
            outcome=outcome,
            turns=(Turn(cost_usd=0.01), Turn(cost_usd=0.02)),
        )
        half = msgspec.structs.replace(complete, turns=(Turn(cost_usd=0.01), Turn()))
        only_cost = {"latency": 0.0, "turns": 0.0}
        assert raw("efficiency", complete, terms=only_cost) == pytest.approx(-5.707, abs=1e-3)
        assert raw("efficiency", half, terms=only_cost) is None

    def test_what_was_measured_otherwise_is_not_compared(self) -> None:
        rewarder = Rewarder(BALANCED)
        for i in range(20):
            rewarder.reward(trajectory(i), (), time=START)
        priced = part(rewarder.reward(trajectory(20), (), time=START), "efficiency")
        free = part(rewarder.reward(trajectory(21, cost_usd=None), (), time=START), "efficiency")
        elsewhere = part(rewarder.reward(trajectory(22, problem="prompt"), (), time=START), "efficiency")
        assert [c.baseline.count for c in (priced, free, elsewhere) if c.baseline is not None] == [20, 0, 0]


class TestRewarding:
    def test_a_reward_is_the_weighted_sum(self) -> None:
        rewarder = Rewarder(BALANCED)
        for i in range(30):
            rewarder.reward(trajectory(i, latency_ms=1000.0 + i), (), time=START)
        found = rewarder.reward(trajectory(30, latency_ms=1014.5, said=(Rating(stars=4),)), (), time=START)
        assert part(found, "efficiency").value == pytest.approx(0.5, abs=0.01)
        efficiency = part(found, "efficiency").value
        assert efficiency is not None
        assert found.total == pytest.approx(0.4 * 1 + 0.2 * efficiency + 0.15 * 0.7 + 0.25 * 0.75)
        assert found.confidence == 1.0
        assert (found.id, found.version, found.revision, found.reason) == ("t30:r1.0", 1, 0, "ingested")
        assert found.definition == BALANCED.hash
        assert decode(encode(found)) == found

    @pytest.mark.parametrize("definition", [BALANCED, AUDITED])
    def test_jitter_of_latency_and_cost_does_not_count(self, definition: RewardDefinition) -> None:
        rewarder = Rewarder(definition)
        for i in range(40):  # a quick step: 0.1 ms, give or take some microseconds
            rewarder.reward(trajectory(i, cost_usd=1e-7 * (i % 3), latency_ms=0.1 + 0.001 * (i % 7)), (), time=START)
        slower = part(rewarder.reward(trajectory(40, cost_usd=0.0, latency_ms=0.26), (), time=START), "efficiency")
        assert slower.value == pytest.approx(0.5, abs=0.02)
        much_slower = rewarder.reward(trajectory(41, cost_usd=0.0, latency_ms=60.0), (), time=START)
        assert (part(much_slower, "efficiency").value or 0.0) < 0.05

    @pytest.mark.parametrize("definition", [BALANCED, AUDITED])
    def test_a_fifth_more_or_less_counts(self, definition: RewardDefinition) -> None:
        def value(by: float) -> float:
            rewarder = Rewarder(definition)
            for i in range(40):
                rewarder.reward(trajectory(i, cost_usd=0.02, latency_ms=2000.0 + i % 5), (), time=START)
            found = rewarder.reward(trajectory(40, cost_usd=0.02 * by, latency_ms=2000.0 * by), (), time=START)
            return part(found, "efficiency").value or 0.0

        assert value(0.8) > 0.9
        assert value(1.0) == pytest.approx(0.5, abs=0.02)
        assert value(1.25) < 0.1

    def test_what_is_missing_gives_its_weight_to_the_rest(self) -> None:
        found = Rewarder(BALANCED).reward(trajectory(quality=None, cost_usd=None, latency_ms=None), (), time=START)
        assert [c.weight for c in found.components] == [1.0, 0.0, 0.0, 0.0]
        assert found.total == 1.0
        assert found.confidence == 0.4
        assert part(found, "feedback").why == "no ratings"

    def test_a_young_baseline_is_neutral_and_lowers_confidence(self) -> None:
        rewarder = Rewarder(BALANCED)
        found = [rewarder.reward(trajectory(i, latency_ms=100.0 * i), (), time=START) for i in range(12)]
        assert [part(r, "efficiency").value for r in found[:10]] == [0.5] * 10
        assert [round(r.confidence, 10) for r in found] == [round(0.55 + 0.02 * min(i, 10), 10) for i in range(12)]
        last = part(found[-1], "efficiency").value
        assert last is not None
        assert last < 0.3

    def test_of_nothing_nothing_is_known(self) -> None:
        bare = Trajectory(id="bare", time=START, task="?", problem="workflow")
        found = Rewarder(AUDITED).reward(bare, (), time=START)
        assert (found.total, found.confidence) == (0.0, 0.0)
        assert all(c.value is None and c.weight == 0 and c.why for c in found.components)

    def test_an_audit_is_recorded_and_not_learned_from(self) -> None:
        audited = Rewarder(AUDITED)
        found = [audited.reward(trajectory(i, cost_usd=i * 1000.0, latency_ms=None), (), time=START) for i in range(9)]
        assert [part(r, "execution").weight for r in found] == [0.0] * 9
        assert part(found[8], "execution").raw == pytest.approx(10 - 0.1 * 800_000)
        assert len({r.total for r in found}) == 1
        only = Rewarder(AUDITED).reward(
            Trajectory(id="x", time=START, task="?", problem="workflow", outcome=Outcome(success=True)), (), time=START
        )
        assert (only.total, only.confidence) == (1.0, 0.4)

    @given(st.integers(0, 2**32))
    def test_rewards_are_in_range_and_the_same_again(self, seed: int) -> None:
        random = Random(seed)
        history = [random_trajectory(i, random) for i in range(40)]
        one, other = Rewarder(AUDITED), Rewarder(AUDITED)
        first = [one.reward(t, (), time=START) for t in history[:20]]
        again = [other.reward(t, (), time=START) for t in history[:20]]
        restored = Rewarder.from_state(AUDITED, other.state())
        first += [one.reward(t, (), time=START) for t in history[20:]]
        again += [restored.reward(t, (), time=START) for t in history[20:]]
        assert [encode(r) for r in first] == [encode(r) for r in again]
        for reward in first:
            assert 0 <= reward.total <= 1
            assert 0 <= reward.confidence <= 1
            assert sum(c.weight for c in reward.components) == pytest.approx(1)

    def test_a_state_of_another_definition_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="begin with the one it was kept for"):
            Rewarder.from_state(AUDITED, Rewarder(BALANCED).state())
        with pytest.raises(StoreError, match="cannot be read"):
            Rewarder.from_state(AUDITED, b"[]")

    def test_ids_fit_whatever_the_trajectory_is_called(self) -> None:
        longest = msgspec.structs.replace(trajectory(), id="x" * 128)
        found = Rewarder(BALANCED).reward(longest, (), time=START)
        assert decode(encode(found)) == found
        assert found.id.endswith(":r1.0")
        assert Rewarder(BALANCED).reward(longest, (), time=START).id == found.id

    def test_a_thousand_rewards_take_less_than_half_a_second(self) -> None:
        random, rewarder = Random(0), Rewarder(AUDITED)
        history = [random_trajectory(i, random) for i in range(1000)]
        took = []
        for _ in range(3):
            began = clock.thread_time()
            for t in history:
                rewarder.reward(t, (), time=START)
            took.append(clock.thread_time() - began)
        assert min(took) < 0.5


class TestLateFeedback:
    def test_only_feedback_changes(self) -> None:
        rewarder = Rewarder(BALANCED)
        history = [trajectory(i, latency_ms=1000.0 + 100 * i) for i in range(20)]
        first = [rewarder.reward(t, (), time=START) for t in history]
        later = START + timedelta(days=3)
        revised = rewarder.revise(first[15], history[15], [thumbs(1, "down", of=15)], time=later)
        assert revised is not None
        assert (revised.id, revised.revision, revised.reason, revised.time) == ("t15:r1.1", 1, "feedback", later)
        for name in ("completion", "efficiency", "quality"):
            before, after = part(first[15], name), part(revised, name)
            assert (after.raw, after.value, after.baseline) == (before.raw, before.value, before.baseline)
        assert part(revised, "feedback").value == 0.0
        assert part(revised, "feedback").weight == 0.25
        assert revised.total == pytest.approx(first[15].total * 0.75)
        assert (first[15].confidence, revised.confidence) == (0.75, 1.0)
        assert rewarder.revise(revised, history[15], [thumbs(1, "down", of=15)], time=later) is None
        again = rewarder.revise(revised, history[15], [thumbs(1, "down", of=15), thumbs(2, "up", of=15)], time=later)
        assert again is not None
        assert (again.id, part(again, "feedback").value) == ("t15:r1.2", 0.5)

    def test_words_alone_change_nothing(self) -> None:
        rewarder = Rewarder(BALANCED)
        first = rewarder.reward(trajectory(), (), time=START)
        words = Feedback(id="f", time=START, trajectory_id="t0", comment="hm")
        assert rewarder.revise(first, trajectory(), [words], time=START) is None
        assert (
            Rewarder(EXECUTION).revise(
                Rewarder(EXECUTION).reward(trajectory(), (), time=START), trajectory(), [thumbs(1, "up")], time=START
            )
            is None
        )

    def test_baselines_do_not_notice(self) -> None:
        rewarder = Rewarder(BALANCED)
        first = rewarder.reward(trajectory(), (), time=START)
        state = rewarder.state()
        rewarder.revise(first, trajectory(), [thumbs(1, "up")], time=START)
        assert rewarder.state() == state

    def test_a_reward_of_another_definition_is_refused(self) -> None:
        first = Rewarder(BALANCED).reward(trajectory(), (), time=START)
        with pytest.raises(ConfigError, match="rescore --version 3"):
            Rewarder(AUDITED).revise(first, trajectory(), (), time=START)


def fill(store: ExperienceStore, n: int) -> list[Trajectory]:
    random = Random(n)
    history = [random_trajectory(i, random) for i in range(n)]
    store.append([(t, encode(t)) for t in history])
    said = [thumbs(i, "up" if i % 2 else "down", of=i) for i in range(0, n, 7)]
    store.append([(f, encode(f)) for f in said])
    return history


class _InterruptedError(Exception):
    pass


class TestRescoring:
    def test_history_is_rewarded_as_it_would_have_been(self, store: ExperienceStore) -> None:
        history = fill(store, BATCH + 20)
        seen: list[int] = []
        done = rescore(store, AUDITED, progress=seen.append)
        assert (done.trajectories, dict(done.stored)) == (BATCH + 20, {Stored.NEW: BATCH + 20})
        assert seen == [BATCH, 20]
        rewarder, total = Rewarder(AUDITED), 0.0
        for one in history:
            story = store.detail(one.id)
            assert story is not None
            expected = rewarder.reward(one, story.feedback, time=START)
            (found,) = story.rewards
            assert found.reason == "rescored"
            assert found.time == one.time + timedelta(milliseconds=one.outcome.latency_ms or 0)
            assert found.total == pytest.approx(expected.total)
            assert found.confidence == pytest.approx(expected.confidence)
            total += found.total
        assert done.mean == pytest.approx(total / len(history))
        assert done.state == rewarder.state()

    def test_again_changes_nothing_and_other_versions_stay(self, store: ExperienceStore) -> None:
        fill(store, 50)
        rescore(store, BALANCED)
        before = store.detail("t7")
        rescore(store, EXECUTION)
        again = rescore(store, BALANCED)
        after = store.detail("t7")
        assert dict(again.stored) == {Stored.DUPLICATE: 50}
        assert before is not None
        assert after is not None
        assert after.rewards[:1] == before.rewards
        assert [(r.version, r.revision) for r in after.rewards] == [(1, 0), (2, 0)]

    def test_interrupted_it_is_simply_run_again(self, store: ExperienceStore) -> None:
        fill(store, BATCH + 20)

        def interrupt(_: int) -> None:
            raise _InterruptedError

        with pytest.raises(_InterruptedError):
            rescore(store, BALANCED, progress=interrupt)
        assert dict(rescore(store, BALANCED).stored) == {Stored.DUPLICATE: BATCH, Stored.NEW: 20}

    def test_a_part_of_history(self, store: ExperienceStore) -> None:
        fill(store, 30)
        assert rescore(store, BALANCED, where=Where(until=START + timedelta(seconds=10))).trajectories == 10
        with pytest.raises(ConfigError, match="cannot be chosen by its reward"):
            rescore(store, BALANCED, where=Where(min_reward=0.5))

    def test_a_used_version_with_other_content_is_refused(self, store: ExperienceStore) -> None:
        fill(store, 3)
        own = definition(ComponentDefinition(name="a", source="completion", weight=1.0))
        rescore(store, own)
        with pytest.raises(ConfigError, match="a version never changes"):
            rescore(store, definition(ComponentDefinition(name="a", source="quality", weight=1.0)))

    def test_an_empty_store(self, store: ExperienceStore) -> None:
        done = rescore(store, BALANCED)
        assert (done.trajectories, done.mean, done.confidence) == (0, 0.0, 0.0)

    def test_an_endless_latency_ends_when_it_began(self, store: ExperienceStore) -> None:
        endless = trajectory(latency_ms=1e300)
        store.append([(endless, encode(endless))])
        rescore(store, EXECUTION)
        story = store.detail("t0")
        assert story is not None
        assert story.rewards[0].time == START
        assert story.rewards[0].confidence == 0.0


class TestExplaining:
    def test_contributions_sum_to_the_total(self, store: ExperienceStore) -> None:
        fill(store, 40)
        rescore(store, AUDITED)
        story = store.detail("t30")
        assert story is not None
        explained = explain(story, definitions(store))
        assert sum(p.contribution for p in explained.parts) == pytest.approx(explained.reward.total)
        assert [p.weight_before for p in explained.parts] == pytest.approx([0.4, 0.2, 0.15, 0.25, 0.0])
        assert set(explained.missing) == {p.component.name for p in explained.parts if p.component.raw is None}

    def test_every_revision_is_published(self, store: ExperienceStore) -> None:
        given, rewarder = trajectory(), Rewarder(BALANCED)
        first = rewarder.reward(given, (), time=START)
        second = rewarder.revise(first, given, [thumbs(1, "up")], time=START + timedelta(days=1))
        assert second is not None
        store.append([(e, encode(e)) for e in (given, first, second)])
        story = store.detail("t0")
        assert story is not None
        explained = explain(story, definitions(store))
        assert explained.reward == second
        assert [(r.revision, r.reason, r.total) for r in explained.history] == [
            (0, "ingested", first.total),
            (1, "feedback", second.total),
        ]
        with pytest.raises(ConfigError, match=r"no reward of version 2 \(there are 1\): .*rescore --version 2"):
            explain(story, definitions(store), version=2)
        assert explain(story, {}).parts[0].weight_before is None


def test_samples_of_the_detectors_are_read_from_a_store(store: ExperienceStore) -> None:
    history = fill(store, 30)
    rescore(store, AUDITED)
    rescore(store, EXECUTION, where=Where(until=START + timedelta(seconds=20)))
    samples = read_samples(store, version=3)
    assert [s.id for s in samples] == [t.id for t in history]
    assert all({"execution", "success"} <= set(s.audits) for s in samples)
    assert all("execution" not in s.values and "completion" in s.values for s in samples)
    assert samples[14].audits["feedback"] == mean_rating(history[14].feedback, [thumbs(14, "down")])
    assert [s.id for s in read_samples(store, version=3, limit=5)] == [t.id for t in history[-5:]]
    assert len(read_samples(store, version=2)) == 20
    by_version = read_samples(store, version=3, audit="2")
    assert sum("2" in s.audits for s in by_version) == 20
    assert by_version[3].audits["2"] == by_version[3].audits["execution"]
    kept_out = read_samples(store, version=3, audit="quality")
    assert all("quality" not in s.values for s in kept_out)
    with pytest.raises(ConfigError, match="did you mean 'quality'"):
        read_samples(store, version=3, audit="qualty")
