from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.contracts.errors import EndpointError, MissingExtraError, WorkersError
from etude.contracts.ports import Verifier
from etude.contracts.work import Fault, Reply, Subtask, Verdict, WorkerError
from etude.orchestrator.verifiers import (
    AllOf,
    CallableVerifier,
    ExitCodeVerifier,
    JudgeVerifier,
    RegexVerifier,
    SchemaVerifier,
    is_cheap,
    kind_of,
)
from etude.orchestrator.workers.openai import OpenAIWorker
from tests.chat_server import Act, ChatServer

SUBTASK = Subtask(workflow="w1", node=3, attempt=1, instruction="Sum it up", task_type="summarise", timeout_s=9.0)


def verdict(verifier: Verifier, output: Any) -> Verdict:
    return asyncio.run(verifier(SUBTASK, output))


async def agrees_later(output: str) -> bool:
    await asyncio.sleep(0)
    return output == "yes"


class TestCallable:
    @pytest.mark.parametrize(
        "call",
        [
            lambda answer: answer == "yes",
            lambda output, instruction: output == "yes" and instruction == "Sum it up",
            lambda task, answer: answer == "yes" and task.node == 3,
            lambda answer, strict=True: strict and answer == "yes",
            lambda subtask, output: (output == "yes", "said so"),
            lambda subtask, output: np.bool_(output == "yes"),
            lambda output: Verdict(ok=output == "yes", cost_usd=0.1),
            agrees_later,
            CallableVerifier(lambda output: output == "yes"),
        ],
    )
    def test_it_says_what_the_callable_says(self, call: Callable[..., Any]) -> None:
        assert verdict(CallableVerifier(call), "yes").ok is True
        assert verdict(CallableVerifier(call), "no").ok is False

    def test_its_reason_is_kept(self) -> None:
        assert verdict(CallableVerifier(lambda output: (False, "too short")), "") == Verdict(
            ok=False, reason="too short"
        )

    @pytest.mark.parametrize("said", [None, "yes", 1, (1, 2), (True, "", "")])
    def test_what_is_no_verdict_is_a_no(self, said: Any) -> None:
        found = verdict(CallableVerifier(lambda output: said), "")
        assert not found.ok
        assert "expected True, False" in found.reason

    def test_an_exception_is_a_no_with_its_reason(self) -> None:
        assert verdict(CallableVerifier(lambda output: output["x"]), {}).reason == "the verifier failed: KeyError: 'x'"

    def test_a_verifier_that_cannot_be_asked_says_so(self) -> None:
        def call(output: object) -> bool:
            raise WorkerError("gone", fault=Fault.UNAVAILABLE)

        with pytest.raises(WorkerError, match="gone"):
            verdict(CallableVerifier(call), "")

    @pytest.mark.parametrize("call", [lambda: True, lambda a, b, c: True, lambda output, other: True])
    def test_one_that_cannot_be_called_is_refused(self, call: Any) -> None:
        with pytest.raises(WorkersError, match="cannot be called"):
            CallableVerifier(call)


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}}},
    "required": ["name"],
    "$defs": {"tag": {"type": "string", "maxLength": 3}},
}


class TestSchema:
    @pytest.mark.parametrize(
        "output",
        [
            {"name": "Ada"},
            '{"name": "Ada", "tags": ["abc"]}',
            '```json\n{"name": "Ada"}\n```\n',
            '```\n{"name": "Ada"}```',
        ],
    )
    def test_what_fits_is_fine(self, output: Any) -> None:
        assert verdict(SchemaVerifier(PERSON), output) == Verdict(ok=True)

    @pytest.mark.parametrize(
        ("output", "said"),
        [
            ({}, "$: 'name' is a required property"),
            ({"name": 3}, "$.name: 3 is not of type 'string'"),
            ('{"name": "Ada", "tags": ["a", "long"]}', "$.tags[1]: 'long' is too long"),
            ("Ada", "no JSON"),
            ("", "no JSON"),
            ('{"name": NaN}', "NaN"),
            ("[" * 100_000, "nested too deep"),
            (None, "$: None is not of type 'object'"),
        ],
    )
    def test_what_does_not_is_reported_where(self, output: Any, said: str) -> None:
        found = verdict(SchemaVerifier(PERSON), output)
        assert (found.ok, found.fault) == (False, Fault.INVALID_OUTPUT)
        assert said in found.reason

    @pytest.mark.parametrize(
        ("schema", "said"),
        [
            ({"type": "objekt"}, "'objekt'"),
            ({"properties": {"a": {"minLength": "3"}}}, "$.properties.a.minLength"),
            ({"items": {"$ref": "#/$defs/missing"}}, "'#/$defs/missing'"),
            ({"$ref": "https://example.com/schema.json"}, "https://example.com/schema.json"),
            ([], "schema"),
        ],
    )
    def test_a_wrong_schema_is_refused(self, schema: Any, said: str) -> None:
        with pytest.raises(WorkersError) as caught:
            SchemaVerifier(schema)
        assert said in str(caught.value)

    def test_a_property_may_be_called_ref(self) -> None:
        verifier = SchemaVerifier({"properties": {"$ref": {"type": "string"}}, "const": {"$ref": "#/nowhere"}})
        assert verdict(verifier, {"$ref": "#/nowhere"}).ok

    def test_a_reference_that_is_found_to_lead_nowhere_is_no_verdict(self) -> None:
        async def run() -> int:
            async with ChatServer() as server:
                inner = {"$id": f"{server.url}/a", "$ref": "b"}
                verifier = SchemaVerifier({"$defs": {"a": inner}, "items": {"$ref": "#/$defs/a"}})
                with pytest.raises(WorkerError, match="refers to"):
                    await verifier(SUBTASK, [1])
                return server.connected

        assert asyncio.run(run()) == 0  # nothing is fetched

    def test_without_jsonschema_it_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "jsonschema", None)
        with pytest.raises(MissingExtraError, match=r"jsonschema.*etude\[run\]"):
            SchemaVerifier({})


class TestRegex:
    @pytest.mark.parametrize(
        ("pattern", "full", "output", "ok"),
        [
            (r"\d\d", False, "in 42 days", True),
            (r"\d\d", True, "in 42 days", False),
            (r"\d+", True, "42", True),
            (r"(?i)(yes|no),?\s+\w+", False, "I say YES, indeed", True),
            (r"(?i)(yes|no),?\s+\w+", False, "perhaps", False),
            (r"(?i)(yes|no),?\s+\w+", True, "no way", True),
            (r"(?i)(yes|no),?\s+\w+", True, "no way out", False),
            (r'"a": \[1', False, {"a": [1]}, True),
            (r"x*\ud800*", True, "\ud800", True),
            ("end", False, "x" * 100_000 + "end", False),
            ("x", True, "x" * 100_001, False),
        ],
    )
    def test_it_finds_what_is_there(self, pattern: str, full: bool, output: Any, ok: bool) -> None:
        found = verdict(RegexVerifier(pattern, full=full), output)
        assert found.ok is ok
        assert bool(found.reason) is not ok

    @pytest.mark.parametrize(("pattern", "output"), [(r"(a+)+$", "a" * 60 + "b"), (r"a*b", "a" * 100_000)])
    def test_a_pattern_that_takes_for_ever_stops_nothing_else(
        self, pattern: str, output: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("etude.orchestrator.verifiers.PATTERN_S", 0.3)
        ticks = []

        async def run() -> Verdict:
            asking = asyncio.create_task(RegexVerifier(pattern)(SUBTASK, output))
            while not asking.done():
                ticks.append(time.monotonic())
                await asyncio.sleep(0.02)
            return await asking

        begun_s = time.monotonic()
        found = asyncio.run(run())
        assert time.monotonic() - begun_s < 10
        assert "took more than 0.3 s" in found.reason
        assert len(ticks) > 3  # others went on meanwhile

    def test_what_surely_ends_soon_is_tried_here(self) -> None:
        assert is_cheap("needle", 100_000)
        assert is_cheap(r"(?:\d+)", 300)
        assert not is_cheap("a*b", 100_000)
        assert not is_cheap("(a+)+", 30)
        assert not is_cheap("a?" * 30 + "a" * 30, 30)

    def test_a_wrong_pattern_is_refused(self) -> None:
        with pytest.raises(WorkersError, match=r"'\(a' cannot be read: missing \)"):
            RegexVerifier("(a")


class TestExitCode:
    @pytest.mark.parametrize("command", [["grep", "-q", "yes"], "grep -q yes"])
    def test_exit_code_zero_is_a_yes(self, command: Sequence[str] | str) -> None:
        assert verdict(ExitCodeVerifier(command), "oh yes") == Verdict(ok=True)
        assert verdict(ExitCodeVerifier(command), ["yes"]) == Verdict(ok=True)
        assert verdict(ExitCodeVerifier(command), "no").reason == "ended with exit code 1"

    def test_its_last_line_is_the_reason(self) -> None:
        said = "echo out; echo first >&2; echo $ETUDE_TASK_TYPE is short >&2; exit 2"
        assert verdict(ExitCodeVerifier(said), "") == Verdict(ok=False, reason="summarise is short")
        assert verdict(ExitCodeVerifier("echo one; echo two; exit 1"), "").reason == "two"

    def test_one_that_hangs_is_a_no_and_nothing_of_it_stays(self, tmp_path: Path) -> None:
        verifier = ExitCodeVerifier(f"echo $$ > {tmp_path}/pid; sleep 60", timeout_s=0.3)
        assert verdict(verifier, "").reason == "the verifier took more than 0.3 s"
        assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()

    @pytest.mark.parametrize("command", [["no-such-program"], "no-such-program"])
    def test_one_that_cannot_be_run_is_no_verdict(self, command: Sequence[str] | str) -> None:
        with pytest.raises(WorkerError, match="cannot be run") as caught:
            verdict(ExitCodeVerifier(command), "")
        assert caught.value.fault == Fault.UNAVAILABLE

    def test_check_finds_the_program(self) -> None:
        asyncio.run(ExitCodeVerifier(["grep", "x"]).check())
        with pytest.raises(WorkersError, match="'no-such-program' is not there"):
            asyncio.run(ExitCodeVerifier(["no-such-program"]).check())
        with pytest.raises(WorkersError, match="expected a program"):
            ExitCodeVerifier([])


def judged(answer: str | Act, output: Any = "a summary", **options: Any) -> tuple[Verdict, ChatServer]:
    """What a judge says whose model answers this."""
    server = ChatServer([answer] if isinstance(answer, Act) else [], answer=lambda request: str(answer))

    async def run() -> Verdict:
        async with server:
            judge = JudgeVerifier(OpenAIWorker("j", url=server.url, model="m", usd_per_call=0.01), **options)
            try:
                await judge.check()
                return await judge(SUBTASK, output)
            finally:
                await judge.close()

    return asyncio.run(run()), server


def test_only_language_models_are_a_judge() -> None:
    judge = JudgeVerifier(OpenAIWorker("j", url="http://127.0.0.1:1/v1", model="m"))
    pattern = RegexVerifier("x")
    assert [kind_of(one) for one in (judge, AllOf([judge, judge]))] == ["judge", "judge"]
    assert [kind_of(one) for one in (pattern, AllOf([pattern, judge]))] == ["verifier", "verifier"]


class TestJudge:
    @pytest.mark.parametrize(
        ("answer", "ok", "reason"),
        [
            ('{"ok": true, "reason": "well done"}', True, "well done"),
            ('```json\n{"ok": false, "reason": "too long"}\n```', False, "too long"),
            ('Let me think {about} it.\n{"ok": true}\nThat is all.', True, ""),
            ('{"ok": true} — no, wait: {"ok": false, "reason": "{}"}', False, "{}"),
            ('{"score": 0.7, "reason": "good"}', True, "good"),
            ('{"score": 0.2}', False, ""),
        ],
    )
    def test_it_says_what_the_model_says(self, answer: str, ok: bool, reason: str) -> None:
        assert judged(answer)[0] == Verdict(ok=ok, reason=reason, cost_usd=0.01)

    def test_the_threshold_is_the_users(self) -> None:
        assert not judged('{"score": 0.7}', threshold=0.9)[0].ok

    def test_the_model_is_shown_what_to_judge(self) -> None:
        _, server = judged('{"ok": true}', output={"made": "{instruction}"})
        shown = server.asked[0]["messages"][0]["content"]
        assert all(part in shown for part in ("Sum it up", "summarise", '{"made": "{instruction}"}', '{"ok": true or'))

    def test_the_question_may_be_the_users(self) -> None:
        _, server = judged('{"ok": true}', question="Is {output} short? {{}}")
        assert server.asked[0]["messages"][0]["content"] == "Is a summary short? {}"
        with pytest.raises(
            WorkersError, match=r"the question has an unknown variable \{ouput\}: did you mean \{output\}"
        ):
            judged("", question="{ouput}")
        with pytest.raises(WorkersError, match=r"put \{output\} into it"):
            judged("", question="Is it short?")

    @pytest.mark.parametrize("answer", ["yes", '{"ok": "yes"}', "[true]", '{"score": true}', "{" * 10_000])
    def test_an_answer_that_is_no_verdict_is_an_error_that_is_paid_for(self, answer: str) -> None:
        with pytest.raises(WorkerError, match="the judge answered") as caught:
            judged(answer)
        assert (caught.value.fault, caught.value.cost_usd) == (Fault.UNKNOWN, 0.01)

    def test_one_that_cannot_be_asked_is_an_error(self) -> None:
        with pytest.raises(WorkerError, match=r"the judge: .*401") as caught:
            judged(Act.UNAUTHORISED)
        assert (caught.value.fault, caught.value.cost_usd) == (Fault.UNAVAILABLE, 0.0)

    def test_check_asks_whether_somebody_is_there(self) -> None:
        judge = JudgeVerifier(OpenAIWorker("j", url="http://127.0.0.1:1/v1", model="m"))
        with pytest.raises(EndpointError):
            asyncio.run(judge.check())


class TestAllOf:
    def verifier(self, *said: Verdict, asked: list[Any]) -> AllOf:
        def one(given: Verdict) -> CallableVerifier:
            async def call(output: object) -> Verdict:
                asked.append(output)
                return given

            return CallableVerifier(call)

        return AllOf([one(given) for given in said])

    def test_all_must_agree_and_costs_are_added(self) -> None:
        asked: list[Any] = []
        yes = Verdict(ok=True, reason="fine", cost_usd=0.1)
        assert verdict(self.verifier(yes, yes, asked=asked), "x") == Verdict(ok=True, reason="fine", cost_usd=0.2)
        assert asked == ["x", "x"]

    def test_the_first_no_wins(self) -> None:
        asked: list[Any] = []
        yes, no = Verdict(ok=True, cost_usd=0.1), Verdict(ok=False, reason="no", fault=Fault.REFUSAL, cost_usd=0.1)
        found = verdict(self.verifier(yes, no, yes, asked=asked), "x")
        assert found == Verdict(ok=False, reason="no", fault=Fault.REFUSAL, cost_usd=0.2)
        assert len(asked) == 2

    def test_an_error_carries_what_the_others_cost(self) -> None:
        def fails(output: object) -> bool:
            raise WorkerError("gone", fault=Fault.UNAVAILABLE, cost_usd=0.2)

        both = AllOf([CallableVerifier(lambda output: Verdict(ok=True, cost_usd=0.1)), CallableVerifier(fails)])
        with pytest.raises(WorkerError) as caught:
            verdict(both, "x")
        assert caught.value.cost_usd == pytest.approx(0.3)

    def test_every_one_is_checked_and_closed(self) -> None:
        with pytest.raises(WorkersError, match="is not there"):
            asyncio.run(AllOf([RegexVerifier("x"), ExitCodeVerifier(["no-such-program"])]).check())
        closed: list[str] = []

        class Model:
            async def check(self) -> None: ...

            async def ask(self, prompt: str, *, timeout_s: float | None = None) -> Reply:
                return Reply(output='{"ok": true}')

            async def close(self) -> None:
                closed.append("model")

        asyncio.run(AllOf([RegexVerifier("x"), JudgeVerifier(Model())]).close())
        assert closed == ["model"]

    def test_there_must_be_one(self) -> None:
        with pytest.raises(WorkersError, match="no verifier"):
            AllOf([])
