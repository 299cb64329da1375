"""Docs cannot lie: links, commands, settings, code and tables of README.md and docs/ are held to what they speak of.

`python -m tests.test_docs` writes the tables between `<!-- begin: … -->` and `<!-- end -->` anew.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import etude
from etude.cli import app
from etude.cli.config import to_markdown
from etude.cli.display import setting
from etude.contracts.field_docs import field_docs
from etude.learning.health import HealthConfig, Symptom
from etude.learning.train import Stage
from etude.settings.tree import FLAGS, PRESETS, TREE, VARIANT_DEFAULTS, resolve
from tests.tiny import etude as run_etude
from tests.tiny import train_command

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "etude"
README = ROOT / "README.md"
CONFIGURATION = ROOT / "docs" / "07-configuration.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
MISTAKE = re.compile(r"^\$ (etude .*)\n(error: .*)$", re.M)
GENERATED = re.compile(r"(?<=<!-- begin: )(\w+)( -->\n)(.*?)(?=<!-- end -->)", re.S)


def fences(page: Path, *languages: str) -> list[str]:
    return [code for language, code in FENCE.findall(page.read_text("utf-8")) if language in languages]


def spans(page: Path) -> list[str]:
    """Code between single backticks."""
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text("utf-8")))


def lines_of_code(page: Path) -> Iterator[str]:
    """What a reader would type: code spans, and lines of shell and plain blocks, without a prompt."""
    yield from spans(page)
    for block in fences(page, "sh", "console", ""):
        block = MISTAKE.sub("", block)
        yield from (line.strip().removeprefix("$ ") for line in block.splitlines())


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


# Tables made from the code.


def presets() -> str:
    """What a preset and a variant change, setting by setting."""
    columns = {f"--preset {name}": values for name, values in PRESETS.items()}
    columns["--variant matched"] = VARIANT_DEFAULTS["matched"]
    lines = [
        f"| setting | default | {' | '.join(f'`{name}`' for name in columns)} |",
        "|---|---|" + "---|" * len(columns),
    ]
    for field in TREE.fields:
        section, _, name = field.key.partition(".")
        changed = [column.get(section, {}).get(name) for column in columns.values()]
        if any(value is not None for value in changed):
            default = list(field.default) if isinstance(field.default, tuple) else field.default
            cells = ["" if value is None else f"`{setting(value)}`" for value in changed]
            lines.append(f"| `{field.key}` | `{setting(default)}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {"settings": lambda: to_markdown(TREE.fields), "presets": presets}


def with_fresh_tables(text: str) -> str:
    return GENERATED.sub(lambda found: f"{found[1]}{found[2]}{TABLES[found[1]]()}", text)


def test_the_configuration_page_says_what_the_code_does() -> None:
    text = CONFIGURATION.read_text("utf-8")
    assert [name for name, _, _ in GENERATED.findall(text)] == ["presets", "settings"]
    assert text == with_fresh_tables(text), "write it anew: python -m tests.test_docs"


def test_every_setting_says_what_it_does() -> None:
    undocumented = [field.key for field in TREE.fields if not field.doc.strip()]
    assert not undocumented
    assert set(field_docs(Stage)) == {"size", "share"}


# What the pages name.


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text("utf-8"))):
        if target.startswith(("http://", "https://")):
            continue
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{named(page)} links to {target}"
        assert not heading or heading in headings(file), f"{named(page)} links to {target}"


def headings(page: Path) -> set[str]:
    """As GitHub names them: lower case, spaces to hyphens, no punctuation."""
    found = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


COMMANDS = sorted(
    {
        line[line.index("etude ") :]
        for page in PAGES
        for line in lines_of_code(page)
        if re.match(r"(?:[A-Z_]+=\S+ )*etude (?!\S*:)", line)
    }
)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_ones_the_command_line_takes(line: str) -> None:
    _, *words = shlex.split(line, comments=True)
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, line
        command = command.commands[words.pop(0)]
    if hasattr(command, "commands"):  # a group alone, or an option of the whole
        assert not words or words[0] in {name for option in command.params for name in option.opts}, line
        return
    if not words:  # the command by its name
        return
    given = command.make_context(command.name, words).params  # parsed, not carried out
    flags = {flag: given.get(flag.removeprefix("--").replace("-", "_")) for flag in FLAGS}
    of_settings = {flag: value for flag, value in flags.items() if value} if "assignments" in given else {}
    resolve(preset=given.get("preset"), assignments=given.get("assignments") or (), flags=of_settings)
    if given.get("key"):
        assert given["key"] in {part for field in TREE.fields for part in (field.key, field.key.partition(".")[0])}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_mistakes_are_told_as_shown(page: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for line, error in MISTAKE.findall(page.read_text("utf-8")):
        assert run_etude(*shlex.split(line)[1:]) == 2
        assert capsys.readouterr().err.strip() == error


def test_commands_are_found() -> None:
    assert len(COMMANDS) > 20
    groups = {line.split()[1] for line in COMMANDS}
    assert {"train", "evaluate", "runs", "config", "demo"} <= groups


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_settings_files_and_targets_that_are_named_exist(page: Path) -> None:
    known = {field.key for field in TREE.fields}
    sections = "|".join({key.partition(".")[0] for key in known})
    for span in spans(page):
        if re.fullmatch(rf"({sections})\.[a-z_]+", span) and not span.endswith((".py", ".md")):
            assert span in known, f"{named(page)} names the setting {span}"
        if re.fullmatch(r"(src|tests|benchmarks|docs|examples|learning|problems|serving|cli)/[\w/.]+\.\w+", span):
            assert any((folder / span).exists() for folder in (ROOT, SOURCE)), f"{named(page)} names the file {span}"
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    for line in lines_of_code(page):
        if line.startswith("make "):
            words = [word for word in line.partition("#")[0].split()[1:] if "=" not in word]
            assert set(words) <= targets, f"{named(page)} names `{line}`"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_data_in_blocks_is_what_it_says(page: Path, tmp_path: Path) -> None:
    for block in fences(page, "json"):
        json.loads(block)
    for block in fences(page, "yaml"):
        file = tmp_path / "etude.yaml"
        file.write_text(block, "utf-8")
        resolve(config=file)


def test_every_symptom_and_its_limits_are_explained() -> None:
    page = ROOT / "docs" / "05-health.md"
    assert {str(symptom) for symptom in Symptom} <= set(spans(page))
    assert {f"health.{name}" for name in HealthConfig.__dataclass_fields__} <= set(spans(page))


def test_every_decision_is_listed_and_numbered() -> None:
    records = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("0*.md"))
    listed = re.findall(r"\((0\d{3}-[\w-]+\.md)\)", (ROOT / "docs" / "decisions" / "README.md").read_text("utf-8"))
    assert listed == records
    assert [int(name[:4]) for name in records] == list(range(1, len(records) + 1))


# The README.


def test_the_readme_leads_through_every_room() -> None:
    order = README.read_text("utf-8").partition("## Read the code in this order")[2].partition("\n## ")[0]
    rooms = [path.parent.name for path in SOURCE.glob("*/__init__.py")]
    assert all(f"(src/etude/{room}/" in order for room in rooms)
    for name, target in re.findall(r"\[`([^`]+)`\]\(([^)]+)\)", order):
        assert target.removesuffix("__init__.py").endswith(name), target


def test_the_readme_names_every_extra_and_the_version() -> None:
    text = README.read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for page in PAGES:
        asked = {
            name for extras in re.findall(r"\.\[([a-z,]+)\]", page.read_text("utf-8")) for name in extras.split(",")
        }
        assert asked <= set(project["optional-dependencies"]), named(page)
    assert set(project["optional-dependencies"]) <= set(spans(README))
    assert f"Version {etude.__version__}" in text
    assert project["version"] == etude.__version__


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_figure_is_left_open(page: Path) -> None:
    assert "TBM" not in page.read_text("utf-8")


def test_the_ten_lines_of_the_readme_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = fences(README, "python")
    assert len([line for line in code.splitlines() if line]) <= 10
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, str(README), "exec"), names)
    assert names["returns"][-1] > 1000
    assert names["policy"].act(names["env"].reset(seed=1)[0]).shape == (4, 3)


# The Python of the pages.


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small run at runs/a."""
    folder = tmp_path_factory.mktemp("docs")
    assert run_etude(*train_command(folder / "runs" / "a", "--quiet")) == 0
    return folder


BLOCKS = [
    pytest.param(code, id=f"{named(page)}-{number}")
    for page in PAGES
    if page != README
    for number, code in enumerate(fences(page, "python"), start=1)
]


@pytest.mark.parametrize("code", BLOCKS)
def test_the_python_of_the_pages_runs(code: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    exec(compile(code, "docs", "exec"), {})


def test_the_example_learns_what_is_best(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "routing.py"), run_name="__main__")
    told = dict(re.findall(r"^([a-z ]+?) +(0\.\d+)  \[", capsys.readouterr().out, re.M))
    assert float(told["policy"]) > float(told["best known"]) - 0.01 > float(told["random"]) + 0.2


if __name__ == "__main__":
    CONFIGURATION.write_text(with_fresh_tables(CONFIGURATION.read_text("utf-8")), "utf-8")
