"""`etude catalogue export`: the catalogue of a workers file, which training files use by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etude.problems.catalogue import read_catalogue
from etude.problems.workflow.examples import read_examples
from tests.tiny import etude, refused

Captured = pytest.CaptureFixture[str]
WORKERS = """
task_types:
  summarise: Summarise a report
  count: Count the words of a text
workers:
  writer: {kind: command, task_types: [summarise], command: [echo, short], usd_per_call: 0.02, description: Writes}
  counter: {kind: command, command: [wc, -w]}
"""


def test_a_workers_file_becomes_a_catalogue_that_names_refer_to(tmp_path: Path, capsys: Captured) -> None:
    file, out = tmp_path / "workers.yaml", tmp_path / "catalogue.json"
    file.write_text(WORKERS)
    assert etude("catalogue", "export", file, "--out", out) == 0
    assert f"2 task types and 2 workers written to {out}" in capsys.readouterr().out
    catalogue = read_catalogue(out)
    first = catalogue.task_types[0]
    assert (first.name, first.description) == ("summarise", "Summarise a report")
    writer, counter = catalogue.workers
    assert (writer.name, writer.task_types, writer.usd_per_call, writer.description) == (
        *("writer", ("summarise",), 0.02),
        "Writes",
    )
    assert counter.task_types is None
    targets = {
        "task_types": ["summarise", "count"],
        "dependencies": [[], [0]],
        "model_selections": ["writer", "counter"],
    }
    (tmp_path / "train.json").write_text(json.dumps([{"instruction": "Do both", "targets": targets}]))
    (example,) = read_examples(tmp_path / "train.json", catalogue, max_nodes=2)
    assert (example.targets.task_types, example.targets.model_selections) == ((0, 1), (0, 1))


def test_a_catalogue_with_other_ids_is_not_overwritten(tmp_path: Path, capsys: Captured) -> None:
    file, out = tmp_path / "workers.yaml", tmp_path / "catalogue.json"
    file.write_text(WORKERS)
    assert etude("catalogue", "export", file, "--out", out) == 0
    file.write_text(WORKERS.replace("0.02", "0.03"))
    assert etude("catalogue", "export", file, "--out", out) == 0
    assert read_catalogue(out).workers[0].usd_per_call == 0.03
    before = out.read_bytes()
    file.write_text(WORKERS.replace("  counter:", "  wc:"))
    assert "has other task types or workers" in refused(capsys, "catalogue", "export", file, "--out", out)
    assert "choose another file with --out" in refused(capsys, "catalogue", "export", file, "--out", file)
    assert out.read_bytes() == before


def test_the_simulated_office_has_a_catalogue_too(tmp_path: Path) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text("simulated: {}\n")
    assert etude("catalogue", "export", file, "--out", tmp_path / "catalogue.json") == 0
    assert read_catalogue(tmp_path / "catalogue.json").workers
