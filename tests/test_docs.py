"""Docs cannot lie: links, commands, settings, code and tables of README.md and docs/ are compared with the product.

`python -m tests.test_docs` generates the tables between `<!-- begin: … -->` and `<!-- end -->` again.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main

import etude
from etude.bootstrap import experience as wiring
from etude.cli import app
from etude.cli.config import to_markdown
from etude.cli.display import setting
from etude.cli.lazy import LazyGroup
from etude.contracts.field_docs import field_docs
from etude.learning.health import HealthConfig, Symptom
from etude.learning.practise import Stage
from etude.learning.run import STOPPED
from etude.problems import table
from etude.serving.metrics import METRICS
from etude.settings.sources import Field
from etude.settings.tree import FLAGS, presets, resolve_settings, tree_of
from tests.tiny import etude as run_etude
from tests.tiny import train_command

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "etude"
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
CONFIGURATION = ROOT / "docs" / "07-configuration.md"
DOCUMENTS = ROOT / "docs" / "11-documents.md"
OPERATING = ROOT / "docs" / "21-operating.md"
ONE_DECISION = ROOT / "docs" / "12-one-decision.md"
OWN_PROBLEM = ROOT / "examples" / "own_problem"
INIT_FILES = SOURCE / "cli" / "orchestrator" / "init_files"
PAGES = [
    README,
    CONTRIBUTING,
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "examples").glob("*/*.md")),
    INIT_FILES / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]

ROOMS = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))

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


def table_of_presets() -> str:
    """Every setting that a preset or a variant changes."""
    columns = {f"--preset {name}": changes(values) for name, values in presets().items()}
    for spec in table.specs().values():
        if spec.variants is not None:
            flag = f"--{spec.variants[0].rpartition('.')[2]}"
            columns |= {f"{flag} {name}": changes(values) for name, values in spec.variants[1].items()}
    lines = [
        f"| setting | default | {' | '.join(f'`{name}`' for name in columns)} |",
        "|---|---|" + "---|" * len(columns),
    ]
    for field in tree_of(None).fields:
        default = default_of(field)
        changed = [setting(column[field.key]) if field.key in column else default for column in columns.values()]
        if set(changed) != {default}:
            cells = ["" if value == default else f"`{value}`" for value in changed]
            lines.append(f"| `{field.key}` | `{default}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def table_of_documents() -> str:
    """Every default that `--preset document` changes."""
    lines = ["| problem | setting | default | document |", "|---|---|---|---|"]
    lines += [f"| `{problem}` | `{key}` | `{ours}` | `{theirs}` |" for problem, key, ours, theirs in differences()]
    return "\n".join(lines) + "\n"


def differences() -> Iterator[tuple[str, str, str, str]]:
    for problem in table.specs():
        document = changes(presets(problem).get("document", {}))
        for field in tree_of(problem).fields:
            if field.key in document and setting(document[field.key]) != default_of(field):
                yield problem, field.key, default_of(field), setting(document[field.key])


def changes(values: Any) -> dict[str, Any]:
    return dict(tree_of(None).flatten(values))


def default_of(field: Field) -> str:
    return setting(list(field.default) if isinstance(field.default, tuple) else field.default)


def table_of_metrics() -> str:
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.whose} | {metric.help} |\n"
        for metric in METRICS
    ]
    return "| metric | type | labels | of | what |\n|---|---|---|---|---|\n" + "".join(rows)


TABLES: dict[str, Callable[[], str]] = {
    "settings": lambda: to_markdown(tree_of(None).fields),
    "presets": table_of_presets,
    "documents": table_of_documents,
    "metrics": table_of_metrics,
}
TABLES_OF = {CONFIGURATION: ["presets", "settings"], DOCUMENTS: ["documents"], OPERATING: ["metrics"]}


def with_generated_tables(text: str) -> str:
    return GENERATED.sub(lambda found: f"{found[1]}{found[2]}{TABLES[found[1]]()}", text)


@pytest.mark.parametrize("page", TABLES_OF, ids=named)
def test_generated_tables_are_up_to_date(page: Path) -> None:
    text = page.read_text("utf-8")
    assert [name for name, _, _ in GENERATED.findall(text)] == TABLES_OF[page]
    assert text == with_generated_tables(text), "generate it again: python -m tests.test_docs"


def test_every_default_that_differs_from_a_document_is_explained() -> None:
    reasons = GENERATED.sub("", DOCUMENTS.read_text("utf-8"))
    explained = set(re.findall(r"`([a-z_0-9.]+)`", reasons))
    assert {key for _, key, _, _ in differences()} <= explained


def test_every_setting_has_a_description() -> None:
    undocumented = [field.key for field in tree_of(None).fields if not field.doc.strip()]
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


@pytest.fixture
def with_the_example(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Etude as it is where the example's problem is installed."""
    monkeypatch.syspath_prepend(OWN_PROBLEM)
    monkeypatch.setitem(table.OURS, "helpdesk", "helpdesk:SPEC")
    caches = (table.specs, table.names, tree_of)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.mark.usefixtures("with_the_example")
@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_ones_the_command_line_takes(line: str) -> None:
    _, *words = shlex.split(line, comments=True)
    command: Any = typer.main.get_command(app)
    path = []
    while is_group(command) and words and not words[0].startswith("-"):
        path.append(words.pop(0))
        assert path[-1] in subcommands(command), line
        command = command.load(path[-1]) if isinstance(command, LazyGroup) else command.commands[path[-1]]
    if is_group(command):  # a group alone, or an option of the whole
        assert not words or words[0] in {name for option in command.params for name in option.opts}, line
        return
    if not words:  # the command by its name
        return
    given = command.make_context(command.name, words).params  # parsed, not carried out
    problem = path[1] if path[0] == "train" else None
    own = [flag.name for flag in table.find_spec(problem).flags if flag.setting] if problem else []
    flags = {flag: given.get(flag.removeprefix("--").replace("-", "_")) for flag in (*FLAGS, *own)} if problem else {}
    if "assignments" in given:
        resolve_settings(
            problem,
            preset=given.get("preset"),
            assignments=given["assignments"] or (),
            flags={flag: value for flag, value in flags.items() if value},
        )
    if given.get("key"):
        known = {field.key for field in tree_of(None).fields}
        assert given["key"] in known | {key.partition(".")[0] for key in known}


def is_group(command: Any) -> bool:
    return hasattr(command, "commands")


def subcommands(group: Any) -> set[str]:
    return set(group.entries() if isinstance(group, LazyGroup) else group.commands)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_errors_are_printed_as_shown(page: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
    known = {field.key for field in tree_of(None).fields}
    sections = "|".join({key.partition(".")[0] for key in known})
    for span in spans(page):
        if re.fullmatch(rf"({sections})\.[a-z_]+", span) and not span.endswith((".py", ".md")):
            assert span in known, f"{named(page)} names the setting {span}"
        if re.fullmatch(rf"(src|tests|benchmarks|docs|examples|{'|'.join(ROOMS)})/[\w/.]+\.\w+", span):
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
        resolve_settings(config=file)


def test_every_reason_to_stop_is_explained() -> None:
    assert {str(reason) for reason in STOPPED} <= set(spans(ROOT / "docs" / "04-runs.md"))


def test_every_symptom_and_its_limits_are_explained() -> None:
    page = ROOT / "docs" / "05-health.md"
    assert {str(symptom) for symptom in Symptom} <= set(spans(page))
    assert {f"health.{name}" for name in HealthConfig.__dataclass_fields__} <= set(spans(page))


def test_every_decision_is_listed_and_numbered() -> None:
    records = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("0*.md"))
    listed = re.findall(r"\((0\d{3}-[\w-]+\.md)\)", (ROOT / "docs" / "decisions" / "README.md").read_text("utf-8"))
    assert listed == records
    assert [int(name[:4]) for name in records] == list(range(1, len(records) + 1))


def test_every_page_is_listed() -> None:
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"({page.name})" not in index] == ["README.md"]


# One decision through the code.


def test_the_reading_order_leads_through_every_room() -> None:
    order = CONTRIBUTING.read_text("utf-8").partition("## Read the code in this order")[2].partition("\n## ")[0]
    assert all(f"(src/etude/{room}/" in order for room in ROOMS)
    for name, target in re.findall(r"\[`([^`]+)`\]\(([^)]+)\)", order):
        assert target.removesuffix("__init__.py").endswith(name), target


def test_the_walk_of_one_decision_is_written_down() -> None:
    walk = json.loads((ROOT / "benchmarks" / "results" / "walk.json").read_text("utf-8"))
    text = ONE_DECISION.read_text("utf-8")
    for stage, functions in walk["stages"].items():
        for function in functions:
            file, _, name = function.partition(":")
            assert f"`{file}`" in text, f"{stage} goes through {file}"
            assert (SOURCE / file).exists(), f"{file} was moved: run benchmarks/walk.py again"
            assert f"`{name.partition('.<locals>')[0]}`" in text, f"{stage} goes through {name}"
        assert f"{stage}, {walk['hops'][stage]} hop" in text
    assert f"{walk['total']} hops" in text
    assert walk["total"] <= 40


# The README.


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


def test_the_first_training_of_the_readme_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, *_ = (code for code in fences(README, "python") if "etude.train(" in code)
    assert len([line for line in code.splitlines() if line]) <= 10
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, str(README), "exec"), names)
    assert max(names["run"].scores) > 1000
    assert etude.load(names["run"].folder.path).act(np.zeros(94)).shape == (4, 3)


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
    for number, code in enumerate(fences(page, "python"), start=1)
    if page != README or "etude.train(" not in code
]


@pytest.fixture
def own_collector() -> Iterator[None]:
    """Experience of a page goes to its own folder, not to that of an earlier test."""
    wiring._collector.made.clear()
    yield
    for collector in wiring._collector.made.values():
        collector.bus.close()
    wiring._collector.made.clear()


@pytest.mark.usefixtures("own_collector")
@pytest.mark.parametrize("code", BLOCKS)
def test_the_python_of_the_pages_runs(code: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    exec(compile(code, "docs", "exec"), {})


PUBLIC = {"etude", "etude.problems.allocation.gym"}
"""What the Python of pages may import of Etude: the package itself, and the PettingZoo environment."""


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_python_of_the_pages_uses_the_public_api(page: Path) -> None:
    for code in fences(page, "python"):
        tree = ast.parse(code)
        imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert {name for name in imported if name.partition(".")[0] == "etude"} <= PUBLIC
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "etude"
        }
        assert used <= {*etude.__all__, "contracts"}


if __name__ == "__main__":
    for page in TABLES_OF:
        page.write_text(with_generated_tables(page.read_text("utf-8")), "utf-8")
