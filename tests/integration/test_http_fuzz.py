"""The API compared with its own description, and malformed requests: no 500, nothing undocumented or written."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from tests.unit.release.traffic import SLOT
from tests.unit.serving.releases import register
from tests.unit.serving.server import serving
from tests.unit.serving.test_http import ASKED

EXAMPLES = 4
"""Requests per route and kind: valid and invalid ones."""
CHECKED = {
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
}
ELSEWHERE = ("/v1/events", "/v1/catalogue")
"""A stream that does not end, and what first loads torch: their own tests ask them."""


@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
def test_every_answer_is_as_it_is_described(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        register(served, tmp_path, "old", "new")
        client = served.client()
        id = client.post("/v1/decisions", json=ASKED | {"problem": SLOT}).json()["id"]
        client.post("/v1/feedback", json={"id": id, "success": True})
        served.server.ingest()
        headers = {"authorization": client.headers["authorization"]}
        schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
        checks = [check for check in CHECKS.get_all() if check.__name__ in CHECKED]
        assert len(checks) == len(CHECKED)
        asked = 0
        for found in schema.get_all_operations():
            operation: Any = found.ok()
            for mode in () if operation.path in ELSEWHERE else GenerationMode:

                @settings(
                    max_examples=EXAMPLES,
                    deadline=None,
                    database=None,
                    derandomize=True,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )
                @given(case=operation.as_strategy(generation_mode=mode))
                def ask(case: Any) -> None:
                    answer = case.call(base_url=served.url, headers=headers)
                    case.validate_response(answer, checks=checks)

                with suppress(Unsatisfiable):  # nothing of a route without parameters can be wrong
                    ask()
                    asked += 1
        assert asked > 80


def test_malformed_requests_are_refused_and_write_nothing() -> None:
    root = Path(__file__).parents[2]
    options = ["--requests", "400", "--seed", "1", "--without", "/v1/catalogue", "--no-save"]
    command = [sys.executable, "benchmarks/http_fuzz.py", *options]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong answers 0, tracebacks in the log 0" in done.stdout
