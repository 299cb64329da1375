"""A catalogue says what exists now: entries come and go, contradictions are named, nothing unreadable gets in."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from etude.contracts.errors import CatalogueError
from etude.problems.catalogue import Catalogue, TaskType, Worker, read_catalogue

WRITE, CHECK = TaskType(name="write", description="put it in words"), TaskType(name="check")
LARGE = Worker(name="large", usd_per_mtok_in=3.0, usd_per_mtok_out=15.0, latency_ms=900.0, size="70B")
TOOL = Worker(name="tool", task_types=("check",), usd_per_call=0.25, quota=2)
BOTH = Catalogue(task_types=(WRITE, CHECK), workers=(LARGE, TOOL))


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "catalogue.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_file_reads_back_as_the_catalogue_it_was_written_from(tmp_path: Path) -> None:
    assert read_catalogue(written(tmp_path, msgspec.json.encode(BOTH))) == BOTH


def test_a_call_costs_its_price_and_its_tokens() -> None:
    assert TOOL.cost_usd() == 0.25
    assert LARGE.cost_usd() == pytest.approx((1000 * 3 + 500 * 15) / 1e6)
    assert LARGE.cost_usd(tokens_in=0, tokens_out=2e6) == pytest.approx(30)


@pytest.mark.parametrize(
    ("changed", "task_type", "able"),
    [
        ({}, "check", True),
        ({}, "write", False),  # no skill
        ({"task_types": None}, "write", True),  # null is everything
        ({"task_types": ()}, "check", False),  # and none is nothing
        ({"available": False}, "check", False),
        ({"quota": 0}, "check", False),
        ({"quota": None}, "check", True),
    ],
)
def test_who_is_able(changed: dict[str, object], task_type: str, able: bool) -> None:
    catalogue = BOTH.updated("tool", **changed)
    assert catalogue.able(catalogue.workers[1], task_type) is able


def test_what_is_added_is_there_and_the_catalogue_before_is_as_it_was() -> None:
    fix, person = TaskType(name="fix"), Worker(name="person", task_types=("fix", "write"))
    more = BOTH.added(fix, person)
    assert more.task_types == (WRITE, CHECK, fix)
    assert more.workers == (LARGE, TOOL, person)
    assert BOTH.task_types == (WRITE, CHECK)
    assert more.withdrawn("fix", "person") == BOTH


def test_a_withdrawn_type_leaves_its_workers_their_others() -> None:
    left = BOTH.updated("tool", task_types=("write", "check")).withdrawn("check")
    assert [t.name for t in left.task_types] == ["write"]
    assert left.workers[1].task_types == ("write",)
    assert left.workers[0].task_types is None


def test_a_worker_whose_last_type_is_withdrawn_can_do_nothing_not_everything() -> None:
    left = BOTH.withdrawn("check")
    assert left.workers[1].task_types == ()
    assert not left.able(left.workers[1], "write")


def test_an_update_changes_one_worker() -> None:
    live = BOTH.updated("large", available=False, success_rate=0.7)
    assert (live.workers[0].available, live.workers[0].success_rate) == (False, 0.7)
    assert live.workers[1] == TOOL


def test_there_may_be_no_workers_and_no_types() -> None:
    assert Catalogue(task_types=()).workers == ()
    assert BOTH.withdrawn("write", "check", "large", "tool") == Catalogue(task_types=(), workers=())


@pytest.mark.parametrize(
    ("types", "workers", "message"),
    [
        ((WRITE, WRITE), (), r"task_types\[1\]: the name 'write' is used twice"),
        ((WRITE, CHECK), (LARGE, TOOL, LARGE), r"workers\[2\]: the name 'large' is used twice"),
        ((TaskType(name=" "),), (), r"task_types\[0\] has no name"),
        ((WRITE,), (Worker(name=""),), r"workers\[0\] has no name"),
        ((WRITE,), (Worker(name="w", task_types=("wirte",)),), r"worker 'w' is able to do 'wirte'.*mean 'write'\?"),
        ((WRITE,), (Worker(name="w", task_types=("zzz",)),), r"'zzz', which is no task type$"),
    ],
)
def test_a_contradiction_is_named(types: tuple[TaskType, ...], workers: tuple[Worker, ...], message: str) -> None:
    with pytest.raises(CatalogueError, match=message):
        Catalogue(task_types=types, workers=workers)


@pytest.mark.parametrize("field", ["usd_per_call", "usd_per_mtok_in", "usd_per_mtok_out", "latency_ms", "quota"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e-9, 1e13, 10**400, "3"])
def test_a_number_that_is_none_is_refused(field: str, value: object) -> None:
    with pytest.raises(CatalogueError, match=rf"^worker 'tool': {field} is .*, expected a number from 0 to 1e\+12$"):
        BOTH.updated("tool", **{field: value})


@pytest.mark.parametrize("value", [math.nan, -0.01, 1.01, "high"])
def test_a_success_rate_is_a_share(value: object) -> None:
    with pytest.raises(CatalogueError, match=r"worker 'large': success_rate is .*, expected a number from 0 to 1$"):
        BOTH.updated("large", success_rate=value)


def test_only_quota_and_success_may_be_unknown() -> None:
    live = BOTH.updated("tool", quota=None, success_rate=None)
    assert (live.workers[1].quota, live.workers[1].success_rate) == (None, None)
    with pytest.raises(CatalogueError, match=r"latency_ms is None, expected a number"):
        BOTH.updated("tool", latency_ms=None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: BOTH.updated("larg", quota=1), r"there is no worker 'larg': did you mean 'large'\?"),
        (lambda: BOTH.updated("tool", qouta=1), r"worker 'tool' has no field 'qouta': did you mean 'quota'\?"),
        (lambda: BOTH.updated("tool", name="large"), r"workers\[1\]: the name 'large' is used twice"),
        (
            lambda: BOTH.withdrawn("chekc"),
            r"'chekc' cannot be withdrawn: it is not in the catalogue: did you mean 'check'\?",
        ),
        (lambda: BOTH.added(WRITE), r"task_types\[2\]: the name 'write' is used twice"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(change: object, message: str) -> None:
    assert callable(change)
    with pytest.raises(CatalogueError, match=message):
        change()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"truncated"),
        ("{", r"truncated"),
        ("[]", r"Expected `object`, got `array`"),
        ('{"workers": []}', r"missing required field `task_types`"),
        ('{"task_types": [{"nme": "a"}]}', r"unknown field `nme` - at `\$\.task_types\[0\]`"),
        ('{"task_types": [], "tools": []}', r"unknown field `tools`"),
        ('{"task_types": [{"name": 3}]}', r"Expected `str`, got `int` - at `\$\.task_types\[0\]\.name`"),
        ('{"task_types": [], "workers": [{"name": "w", "latency_ms": NaN}]}', r"malformed"),
        ('{"task_types": [], "workers": [{"name": "w", "latency_ms": 1e999}]}', r"out of range - at .*latency_ms"),
        ('{"task_types": [], "workers": [{"name": "w", "quota": 1.5}]}', r"Expected `int \| null`, got `float`"),
        (b'{"task_types": [{"name": "\xff"}]}', r"UTF-8|utf-8"),
    ],
)
def test_a_file_that_is_no_catalogue_says_where(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(CatalogueError, match=message) as caught:
        read_catalogue(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert 'expected {"task_types"' in str(caught.value)


@pytest.mark.parametrize("digits", [1, 500])
def test_a_contradiction_in_a_file_names_the_file(tmp_path: Path, digits: int) -> None:
    text = f'{{"task_types": [], "workers": [{{"name": "w", "quota": -{"9" * digits}}}]}}'
    path = written(tmp_path, text)
    with pytest.raises(CatalogueError, match=rf"^{path}: worker 'w': quota is -9+, expected"):
        read_catalogue(path)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"absent\.json: cannot be read \(No such file or directory\)"):
        read_catalogue(tmp_path / "absent.json")
    with pytest.raises(CatalogueError, match=r"cannot be read \(Is a directory\)"):
        read_catalogue(tmp_path)
