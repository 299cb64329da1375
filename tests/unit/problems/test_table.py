"""The table of problems: ours, those of installed packages, and clear words for what is wrong with one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from etude.bootstrap.runs import start_run
from etude.contracts.errors import ConfigError
from etude.learning.requests import LearnRequest
from etude.problems import table
from etude.problems.spec import ProblemSpec, resolve
from etude.problems.table import GROUP, OURS, find_spec, specs
from etude.settings.tree import Settings


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    specs.cache_clear()
    yield
    specs.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
    found = EntryPoints(EntryPoint(name=name, value=value, group=GROUP) for name, value in entries)
    monkeypatch.setattr(table, "entry_points", lambda *, group: found.select(group=group))


DICE = ProblemSpec(name="dice", summary="Which die.", settings="", sections=(), learners={}, load="")
MISNAMED = ProblemSpec(name="other", summary="Which die.", settings="", sections=(), learners={}, load="")


def test_every_problem_of_ours_is_found_by_its_name() -> None:
    assert list(specs())[: len(OURS)] == list(OURS)
    for name in OURS:
        assert find_spec(name).name == name


@pytest.mark.parametrize("name", OURS)
def test_everything_that_a_spec_refers_to_is_there(name: str) -> None:
    spec = find_spec(name)
    single = [spec.settings, spec.load, spec.problem, spec.compare, spec.record, spec.read_logs, spec.method]
    single += [spec.preset, spec.finish]
    references = [*filter(None, single), *spec.learners.values(), *spec.evaluations.values()]
    assert [reference for reference in references if not callable(resolve(reference))] == []
    assert {field.name for field in fields(resolve(spec.settings))} == set(spec.sections)


def test_reading_all_specs_imports_no_torch() -> None:
    code = "import sys; from etude.problems.table import specs; specs(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout == "False\n", done.stderr


def test_problems_of_installed_packages_come_after_ours_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = f"{__name__}:DICE"
    install(monkeypatch, ("dice", dice))
    assert list(specs()) == [*OURS, "dice"]
    assert find_spec("dice") is DICE


def test_an_installed_distribution_is_found_by_its_entry_point(tmp_path: Path) -> None:
    """As pip leaves it: a module, and metadata next to it."""
    (tmp_path / "dice.py").write_text(
        "from etude.problems.spec import ProblemSpec\n"
        "SPEC = ProblemSpec(name='dice', summary='Which die.', settings='', sections=(), learners={}, load='')\n"
    )
    info = tmp_path / "dice-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dice\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\ndice = dice:SPEC\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from etude.problems.table import find_spec; print(find_spec('dice').summary)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout == "Which die.\n", done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "allocatoin",
            "there is no problem 'allocatoin': did you mean 'allocation'? "
            "there are choice, workflow, allocation, prompt",
        ),
        ("Workflow", "did you mean 'workflow'?"),
        ("xyz", "there is no problem 'xyz': there are choice, workflow, allocation, prompt"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        find_spec(name)
    assert words in str(refused.value)


def test_a_name_of_ours_cannot_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ("workflow", f"{__name__}:DICE"))
    with pytest.raises(ConfigError, match=rf"'workflow' of {__name__}:DICE has a name that is taken: rename its entry"):
        specs()


def test_a_name_cannot_be_taken_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ("dice", f"{__name__}:DICE"), ("dice", "another.package:SPEC"))
    with pytest.raises(ConfigError, match=r"'dice' of .* has a name that is taken"):
        specs()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("no.such.package:SPEC", "cannot be imported (ModuleNotFoundError: No module named 'no'): repair or uninstall"),
        (f"{__name__}:NOTHING", "cannot be imported (AttributeError"),
        (f"{__name__}:MISNAMED", 'is not a ProblemSpec of that name: expected `dice = "package.module:SPEC"`'),
        (f"{__name__}:GROUP", "is not a ProblemSpec of that name"),
    ],
)
def test_a_broken_package_is_named_with_what_to_do(value: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ("dice", value))
    with pytest.raises(ConfigError) as refused:
        specs()
    assert words in str(refused.value)
    assert "'dice'" in str(refused.value)
    assert value in str(refused.value)


def test_a_method_that_a_problem_does_not_have_is_refused_with_those_it_has(tmp_path: Path) -> None:
    request = LearnRequest(problem="allocation", method="imitate", settings=Settings(), out=tmp_path / "run")
    with pytest.raises(ConfigError, match="'allocation' does not learn by 'imitate': expected one of practise"):
        start_run(request)
    assert not (tmp_path / "run").exists()
