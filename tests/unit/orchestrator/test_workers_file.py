"""Workers files: what a right one gives, and that a wrong one is reported file, line, value and remedy."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import re
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.contracts.errors import WorkersError
from etude.contracts.work import Input, Subtask
from etude.orchestrator import workers_file as module
from etude.orchestrator.crew import Crew
from etude.orchestrator.workers.openai import OpenAIWorker
from etude.orchestrator.workers_file import WorkersFile, read_workers, unreachable_workers
from etude.problems.catalogue import TaskType
from etude.problems.catalogue import Worker as Entry
from etude.problems.workflow.plan import Limits

EXAMPLES = Path(__file__).parents[3] / "examples"
KEY = "sk-" + "abcdefghij0123456789"
"""Looks like one."""

GOOD = """\
task_types:
  count: Count words
  summarise:
    description: Write a summary
workers:
  wc:
    kind: command
    command: [wc, -w]
  small:
    kind: openai
    url: http://localhost:11434/v1
    model: llama3.2
    prompts:
      summarise: "Summarise: {input}"
limits:
  max_cost_usd: 0.5
"""


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "workers.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(folder: Path, text: str | bytes, **env: str) -> WorkersFile:
    return read_workers(write(folder, text), env=env)


def refusal(folder: Path, text: str | bytes, **env: str) -> str:
    """What is said about a file, without the folder."""
    with pytest.raises(WorkersError) as refused:
        read(folder, text, **env)
    return str(refused.value).removeprefix(f"{folder}/")


def worker(lines: str, task_types: str = "  count: Count words") -> str:
    """A file with one worker, whose keys begin in line 5, or further down where there are more task types."""
    return f"task_types:\n{task_types}\nworkers:\n  w:\n" + "".join(f"    {line}\n" for line in lines.splitlines())


def verify(lines: str) -> str:
    """A file with one verifier, whose keys begin in line 4."""
    body = "".join(f"      {line}\n" for line in lines.splitlines())
    return f"task_types:\n  count:\n    verify:\n{body}workers:\n  w: {{kind: command, command: [wc]}}\n"


def parameters(lines: str) -> str:
    """A file with a task type that has a parameter `n`, whose other keys begin in line 5."""
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    schema = "    parameters:\n      {type: object, properties: {n: {type: integer}}}\n"
    return f"task_types:\n  count:\n{schema}{body}workers:\n  w: {{kind: command, command: [wc]}}\n"


def subtask(task_type: str = "count", output: Any = "one two three") -> Subtask:
    made = (Input(task_type="read", output=output),)
    return Subtask(workflow="w", node=0, attempt=1, instruction="Do it", task_type=task_type, inputs=made)


def crew_of(file: WorkersFile) -> Crew:
    assert file.crew is not None
    return file.crew


def executed(file: WorkersFile) -> tuple[dict[str, int | None], dict[str, float]]:
    """Of each worker, attempts at once and the seconds of one."""
    members = {member.entry.name: member for member in crew_of(file).members}
    return {n: m.concurrency for n, m in members.items()}, {n: m.timeout_s for n, m in members.items()}


def test_a_file_becomes_a_catalogue_workers_and_limits(tmp_path: Path) -> None:
    text = GOOD.replace(
        "    model:", "    usd_per_mtok_in: 1e-1\n    task_types: [count]\n    timeout_s: 7\n    model:"
    )
    file = read(tmp_path, text + "timeout_s: 9\nhuman: yes\n")
    assert file.crew is not None
    assert file.crew.catalogue.task_types == (
        TaskType(name="count", description="Count words"),
        TaskType(name="summarise", description="Write a summary"),
    )
    assert file.crew.catalogue.workers == (
        Entry(name="wc"),
        Entry(name="small", usd_per_mtok_in=0.1, task_types=("count",)),
    )
    assert {name: found.name for name, found in file.crew.workers.items()} == {"wc": "wc", "small": "small"}
    assert file.limits == Limits(max_cost_usd=0.5)
    assert executed(file) == ({"wc": 8, "small": 8}, {"wc": 9.0, "small": 7.0})
    assert (file.human, file.crew.judge, file.crew.verifiers, file.simulated) == (True, None, {}, None)


def test_keys_of_the_catalogue_and_of_the_executor_are_taken(tmp_path: Path) -> None:
    keys = "description: d\nusd_per_call: 0.1\nlatency_ms: 3\nsuccess_rate: 0.5\nquota: 4\nsize: small\nconcurrency: 2"
    file = read(tmp_path, worker(f"kind: command\ncommand: [wc]\n{keys}"))
    assert file.crew is not None
    assert file.crew.catalogue.workers == (
        Entry(name="w", description="d", usd_per_call=0.1, latency_ms=3, success_rate=0.5, quota=4, size="small"),
    )
    assert (*executed(file), file.human) == ({"w": 2}, {"w": 60.0}, False)


def test_an_openai_worker_gets_its_prompts_prices_and_key(tmp_path: Path) -> None:
    more = "    usd_per_mtok_out: 1.0\n    max_tokens: 500000\n    extra: {seed: null}\n    api_key_env: MY_KEY\n"
    file = read(tmp_path, GOOD.replace("    prompts:", f"{more}    prompts:"), MY_KEY="k")
    small = crew_of(file).workers["small"]
    assert isinstance(small, OpenAIWorker)
    assert small.rendered(subtask("summarise")) == "Summarise: one two three"
    assert "Your step: count" in small.rendered(subtask())
    assert small.max_usd(subtask()) == pytest.approx(0.5)


def test_the_key_is_taken_from_the_environment_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, GOOD.replace("    prompts:", "    api_key_env: ETUDE_TEST_KEY\n    prompts:"))
    monkeypatch.setenv("ETUDE_TEST_KEY", "k")
    assert "small" in crew_of(read_workers(path)).workers
    monkeypatch.delenv("ETUDE_TEST_KEY")
    with pytest.raises(WorkersError, match="'ETUDE_TEST_KEY' is not set"):
        read_workers(path)


def test_the_defaults_of_a_model_are_those_of_its_worker() -> None:
    defaults = {name: p.default for name, p in inspect.signature(OpenAIWorker).parameters.items()}
    ours = {name: f.default for name, f in module._Model.model_fields.items() if not f.is_required()}
    assert {name: value for name, value in ours.items() if name != "api_key_env"} == {
        name: defaults[name] for name in ours if name != "api_key_env"
    }


def test_workers_of_every_kind_work_in_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "office"
    folder.mkdir()
    (folder / "office_tools_here.py").write_text("def shout(instruction): return instruction.upper()\n")
    (folder / "recordings.jsonl").write_text('{"task_type": "count", "output": "recorded"}\n')
    (folder / "note.txt").write_text("from the folder")
    text = (
        "task_types: {count: Count}\nworkers:\n"
        "  cat: {kind: command, command: [cat, note.txt]}\n"
        "  py: {kind: callable, callable: 'office_tools_here:shout'}\n"
        "  tape: {kind: recorded, file: recordings.jsonl}\n"
    )
    before = list(sys.path)
    write(folder, text)
    monkeypatch.chdir(tmp_path)
    file = read_workers(Path("office/workers.yaml"), env={})
    assert sys.path == before

    async def outputs() -> list[Any]:
        return [(await each.do(subtask())).output for each in crew_of(file).workers.values()]

    assert asyncio.run(outputs()) == ["from the folder", "DO IT", "recorded"]


@pytest.mark.parametrize(
    ("lines", "good", "bad"),
    [
        ("schema: {type: object, required: [n]}", {"n": 1}, {"m": 1}),
        ("schema: of_a_number.json", 3, "three"),
        ("regex: '^[0-9]+'", "12 words", "words"),
        ("regex: '[0-9]+'\nfull: true", "12", "12 words"),
        ("callable: checks_of_this_test:short", "abc", "abcdef"),
        ("command: [python3, is_three.py]\ntimeout_s: 20", "3", "4"),
        ("- regex: a\n- regex: b", "ab", "a"),
        ("regex: a\ncallable: checks_of_this_test:short", "a", "abcdef"),
    ],
)
def test_verifiers_say_what_is_a_success(tmp_path: Path, lines: str, good: Any, bad: Any) -> None:
    (tmp_path / "of_a_number.json").write_text('{"type": "number"}')
    (tmp_path / "checks_of_this_test.py").write_text("def short(output): return len(output) < 5\n")
    (tmp_path / "is_three.py").write_text("import sys\nsys.exit(sys.stdin.read() != '3')\n")
    verifier = crew_of(read(tmp_path, verify(lines))).verifiers["count"]

    async def verdicts() -> tuple[bool, bool]:
        return (await verifier(subtask(), good)).ok, (await verifier(subtask(), bad)).ok

    assert asyncio.run(verdicts()) == (True, False)


def test_a_plain_question_takes_the_place_of_the_usual_one(tmp_path: Path) -> None:
    judge = "judge: {url: http://localhost:1/v1, model: m, question: 'Is it funny?'}"
    verifier: Any = crew_of(read(tmp_path, verify(judge))).verifiers["count"]
    asked = verifier._question.render(subtask(), output="a joke")
    assert "Is it funny? Answer with JSON" in asked
    assert "a joke" in asked
    whole: Any = crew_of(read(tmp_path, verify(judge.replace("Is it funny?", "Rate {output}")))).verifiers["count"]
    assert whole._question.render(subtask(), output="a joke") == "Rate a joke"


def test_a_verifier_at_the_top_judges_the_workflow(tmp_path: Path) -> None:
    file = read(tmp_path, GOOD + "verify: {regex: well}\n")
    judge = crew_of(file).judge
    assert judge is not None
    assert crew_of(file).verifiers == {}
    assert asyncio.run(judge(subtask(), "done well")).ok  # type: ignore[arg-type]


def test_task_types_may_come_from_a_catalogue(tmp_path: Path) -> None:
    (tmp_path / "catalogue.json").write_text('{"task_types": [{"name": "count", "description": "Count"}]}')
    text = "catalogue: catalogue.json\nworkers:\n  w: {kind: command, command: [wc], task_types: [count]}\n"
    file = read(tmp_path, text)
    assert file.crew is not None
    assert file.crew.catalogue.task_types == (TaskType(name="count", description="Count"),)
    assert refusal(tmp_path, text + "task_types: {a: b}\n").startswith("workers.yaml:4: task_types: are there twice")
    missing = refusal(tmp_path, text.replace("catalogue.json", "none.json"))
    assert missing.startswith(f"workers.yaml:1: catalogue: {tmp_path}/none.json: cannot be read (No such file")
    (tmp_path / "catalogue.json").write_text('{"task_types": [{"name": "count"}, {"name": "fly"}]}')
    assert refusal(tmp_path, text).startswith("workers.yaml:1: catalogue: no worker is able to do 'fly': add it")
    (tmp_path / "catalogue.json").write_text('{"task_types": []}')
    assert refusal(tmp_path, text).startswith("workers.yaml:1: catalogue: there are no task types: add some")


def test_the_simulated_office_comes_in_place_of_workers(tmp_path: Path) -> None:
    file = read(tmp_path, "simulated: {skill_seed: 3}\nlimits: {max_attempts: 2}\nhuman: true\n")
    assert file.simulated == {"skill_seed": 3, "scenario_seed": 0}
    assert (file.crew, file.limits.max_attempts, file.human) == (None, 2, True)
    wrong = refusal(tmp_path, "simulated: {}\nworkers:\n  w: {kind: command}\n")
    assert wrong.startswith("workers.yaml:2: workers: is there together with `simulated`")
    assert "did you mean 'skill_seed'?" in refusal(tmp_path, "simulated: {skillseed: 3}\n")
    assert refusal(tmp_path, "simulated:\n  skill_seed: -1\n").startswith(
        "workers.yaml:2: simulated.skill_seed: found -1"
    )


OPENAI = "kind: openai\nurl: http://localhost:1/v1\nmodel: m\n"
COMMAND = "kind: command\ncommand: [wc]\n"

WRONG: dict[str, tuple[str | bytes, int, list[str]]] = {
    # The file.
    "not yaml": (
        "task_types:\n  a: [b\nworkers: {}\n",
        3,
        ["cannot be read as YAML", "expected ',' or ']'"],
    ),
    "a tab": ("task_types:\n\ta: b\n", 2, ["cannot be read as YAML", "'\\t'"]),
    "twice": ("task_types: {}\nworkers: {}\ntask_types: {}\n", 3, ["3: task_types: stands there twice", "keep one"]),
    "a worker twice": (GOOD.replace("  small:", "  wc:"), 9, ["workers.wc: stands there twice", "keep one"]),
    "empty": ("", 1, ["is empty", "`task_types:` and `workers:`", "examples/workers.yaml"]),
    "comments": ("# nothing\n", 1, ["is empty"]),
    "a list": ("- a\n- b\n", 1, ["holds ['a', 'b']", "expected `task_types:`"]),
    "two documents": ("a: 1\n---\nb: 2\n", 2, ["cannot be read as YAML", "another document"]),
    "not utf-8": (b"task_types:\n  a: caf\xe9\n", 2, ["byte 0xe9 is not UTF-8", "save the file as UTF-8"]),
    "control character": ("task_types:\n  ä: b\n  c: \x00\n", 3, [r"'\x00' cannot stand in YAML", "remove it"]),
    "alias": ("a: &x [1]\nb: *x\n", 2, ["found the alias *x", "expected what it stands for"]),
    "bomb": (
        "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)),
        2,
        ["found the alias *a0", "expected what it stands for"],
    ),
    "deep": ("a: " + "[" * 60 + "]" * 60, 1, ["a.0.0: nested too deep", "50 levels at most"]),
    "abyss": ("a: " + "[" * 50_000, 1, ["nested too deep", "50 levels at most"]),
    "tag": ("task_types: {a: b}\nworkers: !x y\n", 2, ["'!x'", "correct that line"]),
    "tag of many": ("task_types: !!python/object:os.system {a: b}\n", 1, ["task_types: found the tag", "remove it"]),
    "merge": ("task_types:\n  <<: {a: b}\n", 2, ["task_types.…: found the key '<<'", "expected a name"]),
    "no name": ("task_types:\n  a: b\n  '': c\n", 3, ["found the key ''", "expected a name"]),
    "blank name": (
        "task_types: {a: b}\nworkers:\n  ' ': {kind: command}\n",
        3,
        ["the key ' '", "expected a name"],
    ),
    "list as name": ("? [a]\n: b\n", 1, ["found the key", "expected a name"]),
    "half a character": ('task_types:\n  a: "\\ud800"\n', 2, ["task_types.a: holds half a character", "remove it"]),
    # The top.
    "unknown section": (GOOD + "worker: {}\n", 17, ["unknown key 'worker'", "did you mean 'workers'?", "known are"]),
    "no workers": ("task_types: {a: b}\n", 1, ["workers: there are none", "add some, such as"]),
    "workers empty": ("task_types: {a: b}\nworkers: {}\n", 2, ["workers: there are none", "add some"]),
    "workers a list": ("task_types: {a: b}\nworkers: [wc]\n", 2, ["found ['wc']", "expected a mapping"]),
    "no task types": ("human: no\nworkers: {w: {kind: command, command: [wc]}}\n", 1, ["no task types", "add some"]),
    "task type a number": (GOOD.replace("Count words", "3"), 2, ["task_types.count: found 3", "expected a mapping"]),
    "task type misspelt": (GOOD.replace("description:", "descripton:"), 4, ["did you mean 'description'?"]),
    "input neither required nor optional": (
        GOOD.replace("description: Write a summary", "input: needed"),
        4,
        ["task_types.summarise.input: found 'needed', expected 'required' or 'optional'"],
    ),
    "parameters of no object": (
        GOOD.replace("description: Write a summary", "parameters: {type: array}"),
        4,
        ["task_types.summarise.parameters: parameters are no object", "{type: object, properties:"],
    ),
    "parameters that are no schema": (
        GOOD.replace("description: Write a summary", "parameters: {type: object, properties: {n: {type: int}}}"),
        4,
        ["task_types.summarise.parameters: the schema is wrong at $.properties.n.type", "correct the schema"],
    ),
    "a parameter with the name of an argument": (
        GOOD.replace("description: Write a summary", "parameters: {type: object, properties: {inputs: {}}}"),
        4,
        ["parameters have 'inputs', which has a meaning of its own; rename it"],
    ),
    "patterns without parameters": (
        GOOD.replace("description: Write a summary", "patterns: {n: (.)}"),
        4,
        ["task_types.summarise.patterns: is for 'parameters', which are not there"],
    ),
    "a pattern of no parameter": (
        parameters("patterns:\n  nn: (.)"),
        6,
        ["task_types.count.patterns.nn: nn is no parameter: did you mean 'n'?"],
    ),
    "a pattern that cannot be read": (parameters("patterns: {n: '('}"), 5, ["n has the pattern '('", "correct it"]),
    "a pattern without a group": (parameters("patterns: {n: a}"), 5, ["'a' with 0 groups: expected one"]),
    "a model without its URL": (parameters("fill: {model: m}"), 5, ["task_types.count.fill: 'url' is missing"]),
    "an unknown parameter in a command": (
        parameters("").replace("[wc]", '[wc, "{param.m}"]'),
        6,
        ["workers.w.command.1:", "unknown variable {param.m}: did you mean {param.n}?", "{input.NAME}, {param.n}"],
    ),
    "an argument that not every subtask has": (
        parameters("")
        .replace("kind: command, command: [wc]", "kind: callable, callable: 'bisect:insort'")
        .replace("{n: {type: integer}}", "{x: {}, a: {}}"),
        6,
        ["workers.w.callable: insort_right requires 'a', which not every subtask has: give it a default"],
    ),
    "limit misspelt": (GOOD.replace("max_cost_usd", "max_cost"), 16, ["limits.max_cost:", "mean 'max_cost_usd'?"]),
    "limit of the wrong type": (GOOD.replace("0.5", "a lot"), 16, ["limits.max_cost_usd: found 'a lot'", "number"]),
    "limits a number": (
        GOOD.replace("limits:\n  max_cost_usd: 0.5", "limits: 3"),
        15,
        ["found 3", "{max_cost_usd"],
    ),
    "limit zero": (GOOD.replace("0.5", "0"), 16, ["found 0", "expected greater than 0", "correct it, or leave it out"]),
    "limit infinite": (GOOD.replace("0.5", ".inf"), 16, ["found inf", "expected a finite number"]),
    "attempts a float": (
        GOOD.replace("max_cost_usd: 0.5", "max_attempts: 1.5"),
        16,
        ["found 1.5", "whole", "for 3"],
    ),
    "human a text": (GOOD + "human: maybe\n", 17, ["human: found 'maybe'", "expected true or false", "for false"]),
    "timeout zero": (GOOD + "timeout_s: 0\n", 17, ["timeout_s: found 0", "greater than 0", "leave it out for 60.0"]),
    # Workers.
    "no kind": (worker("command: [wc]"), 4, ["workers.w: 'kind' is missing", "openai, command, callable, recorded"]),
    "unknown kind": (worker("kind: comand"), 5, ["workers.w.kind: found 'comand'", "did you mean 'command'?"]),
    "kind a list": (worker("kind: [a]"), 5, ["found ['a']", "expected one of openai"]),
    "simulated kind": (worker("kind: simulated"), 5, ["`simulated: {skill_seed: 0, scenario_seed: 0}` instead"]),
    "no url": (
        worker("kind: openai\nmodel: m"),
        4,
        ["workers.w: 'url' is missing", "`url: http://localhost:11434/v1`"],
    ),
    "no command": (worker("kind: command"), 4, ["'command' is missing", "such as `command: [wc, -w]`"]),
    "no callable": (worker("kind: callable"), 4, ["'callable' is missing", "`callable: mypackage.tools:translate`"]),
    "no file": (worker("kind: recorded"), 4, ["'file' is missing", "such as `file: recordings.jsonl`"]),
    "misspelt": (worker(f"{COMMAND}concurency: 3"), 7, ["unknown key 'concurency'", "did you mean 'concurrency'?"]),
    "misspelt, so missing": (worker("kind: command\ncomand: [wc]"), 6, ["did you mean 'command'?"]),
    "of another kind": (
        worker(f"{COMMAND}url: x"),
        7,
        ["'url' is for workers of kind openai", "remove it"],
    ),
    "worker a text": ("task_types: {a: b}\nworkers:\n  w: wc\n", 3, ["workers.w: found 'wc'", "expected a mapping"]),
    "command a text": (worker("kind: command\ncommand: wc -w"), 6, ["found 'wc -w'", "a list", "`command: [wc, -w]`"]),
    "argument a number": (worker("kind: command\ncommand:\n- head\n- 3"), 8, ["command.1: found 3", "text, in quotes"]),
    "command empty": (worker("kind: command\ncommand: []"), 6, ["found []", "expected something in it"]),
    "no program": (worker("kind: command\ncommand: ['']"), 6, ["workers.w.command: command is ['']", "[wc, -w]"]),
    "unknown task type": (
        worker(f"{COMMAND}task_types:\n- count\n- coumt"),
        9,
        ["workers.w.task_types.1: 'coumt' is no task type", "did you mean 'count'?", "correct it, or add it"],
    ),
    "nothing like it": (worker(f"{COMMAND}task_types: [fly]"), 7, ["'fly' is no task type", "one of ['count']"]),
    "able to do nothing": (
        worker(f"{COMMAND}task_types: []"),
        7,
        ["found []", "something in it", "leave it out"],
    ),
    "task type twice": (worker(f"{COMMAND}task_types: [count, count]"), 7, ["'count' stands there twice", "keep one"]),
    "task type nobody does": (
        worker(f"{COMMAND}task_types: [count]", "  count: c\n  fly: f"),
        3,
        ["task_types.fly: no worker is able to do 'fly'", "add it to one's task_types, or remove it"],
    ),
    "nobody has calls left": (worker(f"{COMMAND}quota: 0"), 2, ["no worker is able to do 'count'"]),
    "price below zero": (
        worker(f"{COMMAND}usd_per_call: -1"),
        7,
        ["found -1", "than or equal to 0", "for 0.0"],
    ),
    "price not a number": (worker(f"{COMMAND}usd_per_call: .nan"), 7, ["found nan", "expected a finite number"]),
    "price infinite": (worker(f"{OPENAI}usd_per_mtok_in: .inf"), 8, ["found inf", "expected a finite number"]),
    "price a text": (worker(f"{OPENAI}usd_per_mtok_out: cheap"), 8, ["found 'cheap'", "expected a number"]),
    "price a truth": (worker(f"{COMMAND}usd_per_call: true"), 7, ["found True", "expected a number"]),
    "price astronomic": (worker(f"{COMMAND}usd_per_call: 1e300"), 7, ["found 1e+300", "less than or equal to"]),
    "success above one": (worker(f"{COMMAND}success_rate: 90"), 7, ["found 90", "less than or equal to 1"]),
    "nobody at once": (worker(f"{COMMAND}concurrency: 0"), 7, ["found 0", "greater than or equal to 1", "out for 8"]),
    "a huge integer": (
        worker(f"{COMMAND}quota: 0x{'f' * 9000}"),
        7,
        ["w.quota: found '0xfff", "…", "whole number"],
    ),
    "no such date": (worker(f"{COMMAND}latency_ms: 2024-99-99"), 7, ["found '2024-99-99'", "number"]),
    "template": (
        worker(f"{OPENAI}prompts:\n  count: |\n    Count:\n    {{inptu}}"),
        9,
        ["workers.w.prompts.count: the template has an unknown variable {inptu}", "did you mean {input}?", "{{ and }}"],
    ),
    "default template": (worker(f"{OPENAI}prompt: '{{x}}'"), 8, ["workers.w.prompt:", "unknown variable {x}", "Known"]),
    "template of a command": (
        worker("kind: command\ncommand:\n- echo\n- '{inpt}'"),
        8,
        ["workers.w.command.1:", "unknown variable {inpt}", "did you mean {input}?"],
    ),
    "prompt of no task type": (worker(f"{OPENAI}prompts:\n  coumt: x"), 9, ["prompts.coumt:", "did you mean 'count'?"]),
    "url": (worker("kind: openai\nmodel: m\nurl: localhost"), 7, ["workers.w.url: url is 'localhost'", "http://host"]),
    "reserved field": (
        worker(f"{OPENAI}extra:\n  messages: []"),
        8,
        ["w.extra: extra has 'messages'", "remove"],
    ),
    "variable not set": (
        worker(f"{OPENAI}api_key_env: MY_KEY"),
        8,
        ["workers.w.api_key_env: the variable 'MY_KEY' is not set", "`export MY_KEY=…`", "or remove api_key_env"],
    ),
    "variable blank": (
        worker(f"{OPENAI}api_key_env: BLANK"),
        8,
        ["'BLANK' holds no key", "line ends", "`export BLANK=…`"],
    ),
    "no such module": (
        worker("kind: callable\ncallable: no_such_module:f"),
        6,
        ["workers.w.callable: 'no_such_module:f'", "cannot be imported", "are looked for in"],
    ),
    "no such function": (
        worker("kind: callable\ncallable: json:dump5"),
        6,
        ["has no 'dump5'", "did you mean 'dump'"],
    ),
    "no function": (
        worker("kind: callable\ncallable: json"),
        6,
        ["names no callable", "package.module:function"],
    ),
    "no such recordings": (
        worker("kind: recorded\nfile: x.jsonl"),
        6,
        ["x.jsonl: cannot be read", "recordings"],
    ),
    # Verifiers.
    "unknown verifier": (
        verify("shema: {}"),
        4,
        ["count.verify.shema: unknown key", "did you mean 'schema'?"],
    ),
    "schema": (
        verify("schema:\n  type: objct"),
        4,
        ["verify.schema:", "$.type", "'objct'", "correct the schema"],
    ),
    "schema a number": (verify("schema: 3"), 4, ["found 3", "expected a JSON Schema, or the name of a file"]),
    "no such schema": (verify("schema: x.json"), 4, ["'x.json' cannot be read", "expected a JSON Schema in a file"]),
    "regex": (
        verify("- regex: a\n- regex: '('"),
        5,
        ["1.regex: the pattern '(' cannot be read", "correct the pattern"],
    ),
    "callable of a check": (verify("callable: json:dump5"), 4, ["verify.callable:", "json has no 'dump5'"]),
    "judge without model": (verify("judge: {url: http://localhost:1/v1}"), 4, ["verify.judge: 'model' is missing"]),
    "judge's key": (
        verify("judge:\n  url: http://localhost:1/v1\n  model: m\n  api_key_env: JUDGE_KEY"),
        7,
        ["'JUDGE_KEY' is not set", "`export JUDGE_KEY=…`"],
    ),
    "question": (
        verify("judge:\n  url: http://localhost:1/v1\n  model: m\n  question: 'Is {it} right?'"),
        7,
        ["verify.judge.question: the question has an unknown variable {it}"],
    ),
    "judge's url": (verify("judge:\n  model: m\n  url: localhost"), 6, ["verify.judge.url: url is 'localhost'"]),
    "checks nothing": (verify("full: true"), 4, ["verify.full: is for 'regex', which is not there", "remove it"]),
    "nothing to check": (GOOD.replace("Count words", "{verify: {}}"), 2, ["checks nothing", "add schema, regex"]),
    "no verifiers": (
        GOOD.replace("Count words", "{verify: []}"),
        2,
        ["verify: there is no verifier", "at least one"],
    ),
    "verifier of the whole": (GOOD + "verify:\n  regex: '['\n", 18, ["verify.regex: the pattern '['"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_reported_file_line_value_and_remedy(tmp_path: Path, case: str) -> None:
    text, line, said = WRONG[case]
    message = refusal(tmp_path, text, BLANK="k\n")
    assert message.startswith(f"workers.yaml:{line}: ")
    assert [part for part in said if part not in message] == []
    assert len(message) < 1000


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (worker(f"{OPENAI}api_key: {KEY}"), 8),
        (worker(f"{OPENAI}api_key: short"), 8),
        (worker(f"{OPENAI}token: short"), 8),
        (worker(f"{OPENAI}api_key_env: {KEY}"), 8),
        (worker(f"{OPENAI}api_key_env: Short1short"), 8),
        (worker(f"{OPENAI}extra: {{auth: Bearer {KEY}}}"), 8),
        (worker("kind: openai\nmodel: m\nurl: http://me:short@host/v1"), 7),
        (worker(f"{COMMAND}concurrency: {KEY}"), 7),
        (f"{KEY}: 3\n", 1),
    ],
)
def test_a_key_in_the_file_is_refused_and_not_shown(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(WorkersError) as refused:
        read(tmp_path, text)
    assert f"workers.yaml:{line}: " in str(refused.value)
    assert "api_key_env" in str(refused.value)
    error: BaseException | None = refused.value
    while error is not None:  # what `--debug` would show
        assert KEY not in str(error)
        assert "short" not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_what_is_no_file_or_too_large_is_reported(tmp_path: Path) -> None:
    with pytest.raises(WorkersError, match=r"none\.yaml: cannot be read \(No such file.*expected `task_types:`"):
        read_workers(tmp_path / "none.yaml", env={})
    with pytest.raises(WorkersError, match=r"cannot be read \(Is a directory\)"):
        read_workers(tmp_path, env={})
    with pytest.raises(WorkersError, match="null byte"):
        read_workers(Path("a\0b"), env={})
    (tmp_path / "large.yaml").write_bytes(b"#" * 1_000_001)
    with pytest.raises(WorkersError, match=r"large\.yaml: has more than 1,000,000 bytes"):
        read_workers(tmp_path / "large.yaml", env={})


def test_recordings_and_schemas_that_are_none_are_reported_with_their_own_lines(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"task_type": "count", "output": 1}\n{"task": 2}\n')
    message = refusal(tmp_path, worker("kind: recorded\nfile: r.jsonl"))
    assert message.startswith(f"workers.yaml:6: workers.w.file: {tmp_path}/r.jsonl:2: is no recording")
    (tmp_path / "s.json").write_text("{")
    assert refusal(tmp_path, verify("schema: s.json")).startswith(
        "workers.yaml:4: task_types.count.verify.schema: 's.json'"
    )
    (tmp_path / "s.json").write_text("[]")
    assert "found [], expected a JSON Schema" in refusal(tmp_path, verify("schema: s.json"))


def test_a_module_that_fails_leaves_the_path_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "broken_office_tools.py").write_text("raise SystemExit('no')\n")
    before = list(sys.path)
    message = refusal(tmp_path, worker("kind: callable\ncallable: broken_office_tools:f"))
    assert "'broken_office_tools' cannot be imported: SystemExit: no" in message
    assert sys.path == before


def test_checking_lists_everybody_who_could_not_work(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = (
        "task_types:\n  count:\n    verify: {command: [no-such-verifier]}\nworkers:\n"
        f"  small: {{kind: openai, url: 'http://127.0.0.1:{port}/v1', model: m}}\n"
        "  wc: {kind: command, command: [no-such-program]}\n"
        "  fine: {kind: command, command: [wc]}\n"
        "  away:\n    kind: command\n    command: [wc]\n    cwd: nowhere\n"
        "verify: {command: [no-such-judge]}\n"
    )
    path = write(tmp_path, text)
    with pytest.raises(WorkersError) as refused:
        asyncio.run(unreachable_workers(read_workers(path, env={})))
    small, wc, away, verifier, judge = str(refused.value).splitlines()
    assert small.startswith(f"{path}:5: workers.small: no service listens at 127.0.0.1:{port}")
    assert wc.startswith(f"{path}:6: workers.wc: the program 'no-such-program' is not there: install it")
    assert away.startswith(f"{path}:11: workers.away.cwd: cwd is '{tmp_path}/nowhere', which is no folder")
    assert verifier.startswith(f"{path}:3: task_types.count.verify: the program 'no-such-verifier'")
    assert judge.startswith(f"{path}:12: verify: the program 'no-such-judge'")


def test_checking_those_who_could_work_says_nothing(tmp_path: Path) -> None:
    assert asyncio.run(unreachable_workers(read(tmp_path, worker(COMMAND)))) == {}
    assert asyncio.run(unreachable_workers(read(tmp_path, "simulated: {skill_seed: 1}\n"))) == {}


def test_some_that_cannot_be_reached_are_named_and_all_of_them_are_an_error(tmp_path: Path) -> None:
    text = "task_types: {count: Count}\nworkers:\n  gone: {kind: command, command: [no-such-program]}\n"
    with pytest.raises(WorkersError, match=r"workers\.yaml:3: workers\.gone: the program 'no-such-program'"):
        asyncio.run(unreachable_workers(read(tmp_path, text)))
    found = asyncio.run(unreachable_workers(read(tmp_path, f"{text}  wc: {{kind: command, command: [wc]}}\n")))
    assert list(found) == ["gone"]
    assert "is not there: install it" in found["gone"]


def test_the_example_works_without_a_network() -> None:
    file = read_workers(EXAMPLES / "workers.yaml", env={})
    assert set(crew_of(file).workers) == {"small-model", "wc", "words", "tape"}
    assert file.limits == Limits(max_cost_usd=0.5, max_time_ms=120_000, max_attempts=3)

    async def run() -> dict[str, tuple[Any, bool]]:
        asked = {"wc": "count", "words": "keywords", "tape": "summarise"}
        found = {}
        for name, task_type in asked.items():
            given = replace(subtask(task_type, "small steps and small checks"), parameters={"count": 2})
            output = (await crew_of(file).workers[name].do(given)).output
            found[name] = output, (await crew_of(file).verifiers[task_type](given, output)).ok
        return found

    found = asyncio.run(run())
    assert found["wc"] == ("5", True)
    assert found["words"] == (["small", "steps"], True)
    assert found["tape"][1]


SIGNS = [*"{}[]:,-?|>#&*!%@=\n\"' ", "\n  ", "kind: ", "workers:\n", "task_types:\n", "a", "wc", "command"]
SCALARS = ["*a", "&a b", "!!bool x", "!!int ''", "!!timestamp x", "!!float x", "!!binary é", "!!set x", "<<: ", "1e3"]
FRAGMENTS = st.lists(st.sampled_from([*SIGNS, *SCALARS]))


@given(FRAGMENTS.map("".join) | st.text() | st.binary())
def test_any_other_file_is_refused_in_our_words(tmp_path_factory: pytest.TempPathFactory, text: str | bytes) -> None:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    path = write(tmp_path_factory.getbasetemp(), data)
    with pytest.raises(WorkersError) as refused:
        read_workers(path, env={})
    assert str(refused.value).startswith(f"{path}:")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=3),
    max_leaves=5,
)
PLACES: list[tuple[str, ...]] = [("task_types", "count"), ("workers", "w"), ("workers", "w", "new")]
PLACES += [(key,) for key in module._File.model_fields]
PLACES += [("workers", "w", key) for key in module._OpenAI.model_fields]


@given(st.sampled_from(PLACES), VALUES)
def test_any_value_anywhere_is_taken_or_refused_with_a_line(
    tmp_path_factory: pytest.TempPathFactory, place: tuple[str, ...], value: Any
) -> None:
    openai = {"kind": "openai", "url": "http://localhost:1/v1", "model": "m"}
    tree: dict[str, Any] = {"task_types": {"count": "c"}, "workers": {"w": openai}}
    inside = tree
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    path = write(tmp_path_factory.getbasetemp(), json.dumps(tree, indent=1))
    reported = ""
    try:
        file = read_workers(path, env={})
        assert file.simulated is not None or all(math.isfinite(limit) for limit in executed(file)[1].values())
    except WorkersError as error:
        reported = str(error)
    assert re.match(rf"{re.escape(str(path))}:\d+: |$", reported)
