"""The house rules as a test: who may import whom, where each library lives, what happens at import.

Reads the imports of every module under src/etude with `ast`; only subprocesses run them.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import pytest

ROOT = Path(__file__).parents[1]

# A room is a folder of src/etude, or a module next to them. It may import itself and the rooms named here.
ALLOWED: dict[str, str] = {
    "contracts": "",
    "files": "contracts",
    "text": "contracts",
    "evidence": "contracts",
    "problems": "contracts files text evidence learning reports",
    "learning": "contracts files evidence problems",  # of problems only the sockets: SOCKETS
    "reports": "contracts evidence learning",
    "orchestrator": "contracts files evidence learning problems",
    "experience": "contracts files evidence",
    "release": "contracts files evidence learning",
    "loop": "contracts files evidence experience learning release problems",
    "serving": "contracts files text evidence learning problems orchestrator experience release loop",
    "adapters": "contracts files",
    "settings": "*",  # the settings tree is made of the rooms' config dataclasses
    "bootstrap": "*",
    "cli": "*",
    "__init__": "*",  # etude.load and its like; torch only when called
    "__main__": "cli",
}

SOCKETS = ("etude.problems.base", "etude.problems.spec", "etude.problems.distributions")
"""What learning may import of problems."""
NAMES = ("workflow", "allocation")
"""Problems of the table, whose names the rest of the code does not know. `choice` is a word of the contracts, too: a
choice of the user's own is logged as choice:NAME."""
PROBLEMS = (*NAMES, "choice", "prompt")
"""The folders of problems."""
NAMES_ALLOWED = (
    *(f"problems/{name}/" for name in PROBLEMS),
    "problems/table.py",
    "orchestrator/",  # carries out workflows, and says so
    "cli/orchestrator/",
    "contracts/work.py",
)

ALLOCATION_FACES = ("problems/allocation/gym.py", "problems/allocation/registration.py")

# Libraries with a home: the files, and folders with all below them, that may import them.
HOMES: dict[str, tuple[str, ...]] = {
    "torch": ("problems/", "text/", "learning/"),
    "gymnasium": ALLOCATION_FACES,
    "pettingzoo": ALLOCATION_FACES,
    "jinja2": ("reports/",),
    "markdown_it": tuple(f"problems/prompt/mutations/{name}.py" for name in ("document", "inline", "markdown")),
    "cryptography": ("release/signing.py",),
    **dict.fromkeys(("litestar", "starlette", "fastapi", "uvicorn"), ("serving/",)),
    "aiohttp": ("serving/routing/",),
    "opentelemetry": ("serving/",),
    **dict.fromkeys(("chdb", "clickhouse_connect", "duckdb", "psycopg", "sqlalchemy"), ("adapters/",)),
    "sqlite3": ("adapters/", "text/cache.py"),
    **dict.fromkeys(("phonenumbers", "stdnum"), ("experience/redaction/",)),
    **dict.fromkeys(("nats", "aiobotocore", "boto3", "botocore", "minio", "obstore", "s3fs"), ("adapters/",)),
}

# Where a library may also be imported, but only inside functions.
LAZY_HOMES: dict[str, tuple[str, ...]] = {"torch": ("cli/", "bootstrap/")}

# What comes without torch, and so does everything it imports at module level.
TORCH_FREE = (
    "etude",
    "etude.bootstrap.experience",
    "etude.bootstrap.policies",
    "etude.cli",
    *(
        f"etude.cli.{name}"
        for name in ("choose", "dataset", "evaluate", "experience", "ingest", "redact", "reward", "runs", "schemas")
    ),
    *(f"etude.cli.orchestrator.{name}" for name in ("catalogue", "collect", "init", "label", "plan", "prepare", "run")),
    "etude.problems.table",
)

EMPTY_NAMES = frozenset({"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc"})

When = Literal["import", "typing", "call"]
"""When an import runs: with its module, never (under TYPE_CHECKING), or with a function."""


@dataclass(frozen=True, kw_only=True)
class Import:
    target: str  # a dotted name: one of our modules where there is one, else what the statement says
    line: int
    when: When

    @property
    def library(self) -> str:
        return self.target.partition(".")[0]

    @property
    def room(self) -> str:
        """Which of our rooms it leads to."""
        return room_of(self.target)


@dataclass(frozen=True, kw_only=True)
class Module:
    path: str  # relative to src/etude
    name: str
    tree: ast.Module
    imports: tuple[Import, ...]

    @property
    def room(self) -> str:
        return room_of(self.name)


House = Mapping[str, Module]


def room_of(name: str) -> str:
    return name.split(".")[1] if "." in name else "__init__"


def read_house(sources: Mapping[str, str]) -> dict[str, Module]:
    """Modules by name, from sources by path relative to src/etude."""
    names = {path: module_name(path) for path in sources}
    known = frozenset(names.values())
    house = {}
    for path, source in sources.items():
        tree = ast.parse(source, filename=path)
        found = tuple(imports_in(tree, path=path, known=known))
        house[names[path]] = Module(path=path, name=names[path], tree=tree, imports=found)
    return house


def module_name(path: str) -> str:
    parts = ["etude", *Path(path).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_in(tree: ast.Module, *, path: str, known: frozenset[str]) -> Iterator[Import]:
    package = ["etude", *Path(path).parent.parts]
    for node, when in statements(tree, "import"):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            full = [f"{origin}.{alias.name}" for alias in node.names]
            # `from a import b` leads to the module a.b where there is one, else to a name inside a.
            # Of a library the full name stays: `from safetensors import torch` needs torch.
            ours = origin.partition(".")[0] == "etude"
            targets = [name if name in known or not ours else origin for name in full]
        else:
            continue
        yield from (Import(target=target, line=node.lineno, when=when) for target in targets)


def statements(node: ast.AST, when: When) -> Iterator[tuple[ast.AST, When]]:
    """Every node below, with when it runs. Decorators and defaults run with the module, a body later."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        body = node.body if isinstance(node.body, list) else [node.body]
        later: When = "typing" if when == "typing" else "call"
    elif isinstance(node, ast.If) and name_of(node.test) == "TYPE_CHECKING":
        body, later = node.body, "typing"
    else:
        body, later = [], when
    for child in ast.iter_child_nodes(node):
        moment = later if child in body else when
        yield child, moment
        yield from statements(child, moment)


def wrong_rooms(house: House) -> list[str]:
    rooms = sorted({module.room for module in house.values()})
    return [
        f"src/etude/{room} is a room nobody knows: add it to ALLOWED in tests/test_architecture.py, "
        "with what it may import, and to the table in CONTRIBUTING.md"
        for room in rooms
        if room not in ALLOWED
    ]


def wrong_directions(house: House) -> list[str]:
    return [
        f"{module.path}:{found.line} imports {found.target}: "
        f"{module.room} may import {ALLOWED[module.room] or 'none of our rooms'}"
        for module in house.values()
        for found in module.imports
        if found.library == "etude" and module.room in ALLOWED and not may_import(module.room, found.room)
    ]


def may_import(room: str, other: str) -> bool:
    return room == other or ALLOWED[room] == "*" or other in ALLOWED[room].split()


def wrong_neighbours(house: House) -> list[str]:
    """Imports between problems, and learning's imports of anything but the sockets."""
    found = []
    for module in house.values():
        own = problem_of(module.name)
        for reached in module.imports:
            other = problem_of(reached.target)
            if own and other and own != other:
                found.append(f"{module.path}:{reached.line} imports {reached.target}: a problem never imports another")
            if module.room == "learning" and reached.room == "problems" and reached.target not in SOCKETS:
                found.append(f"{module.path}:{reached.line} imports {reached.target}: learning knows no problem")
    return found


def problem_of(name: str) -> str:
    """The problem whose folder a module is in."""
    parts = name.split(".")
    return parts[2] if parts[:2] == ["etude", "problems"] and len(parts) > 2 and parts[2] in PROBLEMS else ""


def named_problems(house: House) -> list[str]:
    """Names of problems in code and strings outside their folders; docstrings and comments may speak of them."""
    found = []
    for module in house.values():
        if module.path.startswith(NAMES_ALLOWED):
            continue
        documented = {id(node) for node in docstrings(module.tree)}
        for node in ast.walk(module.tree):
            said = (
                node.value
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
                else getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "module", None) or ""
            )
            words = set(re.findall("[a-z]+", said.lower())) if id(node) not in documented else set()
            for name in words & set(NAMES):
                found.append(f"{module.path}:{getattr(node, 'lineno', 0)} names the problem {name!r}: ask its spec")
    return found


def docstrings(tree: ast.Module) -> Iterator[ast.AST]:
    """Strings that are statements: docstrings, and those below a field or a constant."""
    return (
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def wrong_homes(house: House) -> list[str]:
    return [
        f"{module.path}:{found.line} imports {found.library}, which lives in {' '.join(HOMES[found.library])}"
        for module in house.values()
        for found in module.imports
        if found.library in HOMES and not at_home(module.path, found)
    ]


def at_home(path: str, found: Import) -> bool:
    homes = HOMES[found.library]
    if found.when != "import":
        homes += LAZY_HOMES.get(found.library, ())
    return any(path.startswith(home) if home.endswith("/") else path == home for home in homes)


def torch_at_import(house: House) -> list[str]:
    """For each module that must come without torch and does not: the chain of imports that brings it."""
    chains = (chain_to_torch(house, name) for name in TORCH_FREE if name in house)
    return [" → ".join(chain) for chain in chains if chain]


def chain_to_torch(house: House, start: str) -> tuple[str, ...]:
    chains: dict[str, tuple[str, ...]] = {start: (start,)}
    queue = [start]
    for name in queue:
        for found in house[name].imports:
            if found.when != "import":
                continue
            if found.library == "torch" or found.target.startswith("safetensors.torch"):
                return (*chains[name], found.target)
            for loaded in lineage(found.target):
                if loaded in house and loaded not in chains:
                    chains[loaded] = (*chains[name], loaded)
                    queue.append(loaded)
    return ()


def lineage(name: str) -> list[str]:
    """The packages above a module, which Python loads first, and the module."""
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def cycles(house: House) -> list[str]:
    """Module-level import cycles. TYPE_CHECKING does not excuse one: it hides it."""
    edges = {
        name: [i.target for i in module.imports if i.when != "call" and i.target in house.keys() - {name}]
        for name, module in house.items()
    }
    found: dict[frozenset[str], str] = {}
    done: set[str] = set()

    def visit(name: str, chain: tuple[str, ...]) -> None:
        if name in chain:
            ring = chain[chain.index(name) :]
            found.setdefault(frozenset(ring), " → ".join((*ring, name)))
        elif name not in done:
            for target in edges[name]:
                visit(target, (*chain, name))
            done.add(name)

    for name in edges:
        visit(name, ())
    return list(found.values())


def empty_names(house: House) -> list[str]:
    return [
        f"{module.path} has a name that says nothing: name it after what it holds"
        for module in house.values()
        for part in Path(module.path).with_suffix("").parts
        if EMPTY_NAMES & set(part.split("_"))
    ]


def environment_reads(house: House) -> list[str]:
    return [
        f"{module.path}:{getattr(node, 'lineno', 0)} reads the environment at import: do it in a function"
        for module in house.values()
        for node, when in statements(module.tree, "import")
        if when == "import" and name_of(node) in {"environ", "getenv"}
    ]


def name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


RULES = (
    wrong_rooms,
    wrong_directions,
    wrong_neighbours,
    named_problems,
    wrong_homes,
    torch_at_import,
    cycles,
    empty_names,
    environment_reads,
)


@cache
def etude_house() -> House:
    source = ROOT / "src" / "etude"
    paths = sorted(source.rglob("*.py"))
    return read_house({path.relative_to(source).as_posix(): path.read_text("utf-8") for path in paths})


def test_the_house_is_read() -> None:
    assert {"etude", "etude.contracts.errors", "etude.problems.base"} <= set(etude_house())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: object) -> None:
    assert callable(rule)
    broken = rule(etude_house())
    assert not broken, "\n" + "\n".join(broken)


BROKEN: list[tuple[str, dict[str, str], str]] = [
    ("wrong_rooms", {"kitchen/stove.py": ""}, "src/etude/kitchen is a room nobody knows"),
    ("wrong_directions", {"contracts/a.py": "import etude.learning.ppo"}, "none of our rooms"),
    ("wrong_directions", {"contracts/a.py": "from etude import load"}, "contracts/a.py:1 imports etude"),
    ("wrong_directions", {"problems/a.py": "from ..experience import task"}, "imports etude.experience"),
    ("wrong_neighbours", {"problems/workflow/a.py": "import etude.problems.allocation.world"}, "never imports another"),
    ("wrong_neighbours", {"learning/a.py": "import etude.problems.table"}, "learning knows no problem"),
    ("named_problems", {"cli/train.py": "if problem == 'workflow': ..."}, "names the problem 'workflow'"),
    ("named_problems", {"learning/a.py": "from etude.problems import allocation_x as b\nprint(b.allocation)"}, "ask"),
    ("wrong_directions", {"learning/a.py": "def f():\n    from etude.cli import x"}, "learning/a.py:2"),
    ("wrong_directions", {"evidence/a.py": "if TYPE_CHECKING:\n    import etude.release"}, "evidence/a.py:2"),
    ("wrong_directions", {"adapters/a.py": "import etude.problems.base"}, "may import contracts"),
    ("wrong_directions", {"serving/app.py": "import etude.bootstrap"}, "serving/app.py:1"),
    ("wrong_homes", {"contracts/a.py": "import torch"}, "contracts/a.py:1 imports torch"),
    ("wrong_homes", {"serving/app.py": "def f():\n    import torch"}, "serving/app.py:2"),
    ("wrong_homes", {"cli/train.py": "from torch import nn"}, "cli/train.py:1"),
    ("wrong_homes", {"problems/allocation/world.py": "import gymnasium"}, "world.py:1 imports gymnasium"),
    ("wrong_homes", {"learning/a.py": "import pettingzoo.utils"}, "imports pettingzoo"),
    ("wrong_homes", {"experience/a.py": "import sqlite3"}, "which lives in adapters/"),
    ("wrong_homes", {"cli/serve.py": "import litestar"}, "which lives in serving/"),
    ("torch_at_import", {"__init__.py": "import etude.a", "a.py": "import torch"}, "etude → etude.a → torch"),
    ("torch_at_import", {"__init__.py": "from safetensors.torch import load"}, "safetensors.torch"),
    (
        "torch_at_import",
        {"cli.py": "import etude.b.c", "b/__init__.py": "import torch", "b/c.py": ""},
        "b → torch",
    ),
    ("cycles", {"a.py": "from etude import b", "b.py": "import etude.a"}, "etude.a → etude.b → etude.a"),
    ("cycles", {"a.py": "import etude.b", "b.py": "if TYPE_CHECKING:\n    import etude.a"}, "b → etude.a"),
    ("empty_names", {"learning/utils.py": ""}, "learning/utils.py"),
    ("empty_names", {"learning/run_manager.py": ""}, "run_manager.py"),
    ("environment_reads", {"cli/a.py": "import os\nX = os.environ['X']"}, "cli/a.py:2"),
    ("environment_reads", {"cli/a.py": "import os\ndef f(x=os.getenv('X')): ..."}, "cli/a.py:2"),
]


@pytest.mark.parametrize(("rule", "sources", "message"), BROKEN)
def test_rule_sees_what_it_forbids(rule: str, sources: dict[str, str], message: str) -> None:
    found = {r.__name__: r(read_house(sources)) for r in RULES}[rule]
    assert len(found) == 1
    assert message in found[0]


ALLOWED_SOURCES: list[dict[str, str]] = [
    {"cli/train.py": "def f():\n    import torch"},
    {"cli/train.py": "if TYPE_CHECKING:\n    from torch import Tensor"},
    {"__init__.py": "def load():\n    from etude.learning import a", "learning/a.py": "import torch"},
    {"learning/a.py": "import etude.learning.b", "learning/b.py": "def f():\n    import etude.learning.a"},
    {"problems/allocation/loaded.py": "import torch\nfrom etude.learning.a import b"},
    {"learning/a.py": "from etude.problems.base import World"},
    {"orchestrator/a.py": "KIND = 'workflow'"},
    {"experience/a.py": '"""A workflow, say."""'},
    {"problems/allocation/gym.py": "import gymnasium, pettingzoo, torch\nfrom .world import W"},
    {"settings.py": "from etude.problems.a import Config\ndef f():\n    import os\n    return os.environ"},
]


@pytest.mark.parametrize("sources", ALLOWED_SOURCES)
def test_rules_let_through_what_is_allowed(sources: dict[str, str]) -> None:
    assert [message for rule in RULES for message in rule(read_house(sources))] == []


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_etude_and_its_command_line_brings_no_torch() -> None:
    imports = "import sys, etude, etude.contracts.errors, etude.cli"
    assert run_python(f"{imports}; print('torch' in sys.modules)") == "False"


def test_importing_any_module_starts_no_thread() -> None:
    names = [name for name in etude_house() if not name.endswith("__main__")]
    code = f"""
import importlib, threading
for name in {names!r}:
    importlib.import_module(name)
    assert threading.active_count() == 1, f"{{name}} starts {{threading.enumerate()[1:]}} when imported"
"""
    run_python(code)
