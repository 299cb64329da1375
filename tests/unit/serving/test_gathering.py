"""Spans that arrive in several requests become one trajectory."""

from __future__ import annotations

from typing import Any

import pytest

from etude.serving.gathering import Gathering, GatheringConfig
from etude.serving.traces import Mapped, Reason
from tests.unit.serving.otlp_requests import (
    CHAT,
    OTHER_TRACE,
    ROOT,
    TOOL,
    TRACE,
    desk,
    log_request,
    parse,
    read,
    record,
    result,
    span,
    trace_request,
)

EVALUATED = "gen_ai.evaluation.result"


def gathering(**limits: Any) -> Gathering:
    return Gathering(GatheringConfig(**{"quiet_s": 10.0, "max_wait_s": 100.0} | limits), tenant="acme")


def one_by_one(request: dict[str, Any]) -> list[dict[str, Any]]:
    return [trace_request(one) for one in request["resourceSpans"][0]["scopeSpans"][0]["spans"]]


def test_spans_in_many_requests_make_the_same_trajectory_as_in_one() -> None:
    found = gathering()
    for second, request in enumerate(one_by_one(desk())):
        assert found.add(parse(request), now_s=second) == ()
        assert found.take(now_s=second) == Mapped()
    assert found.take(now_s=12.9) == Mapped()
    mapped = found.take(now_s=13.0)
    assert mapped.trajectories == read(desk(), tenant="acme").trajectories
    assert (len(found), found.take(now_s=1000.0)) == (0, Mapped())


def test_a_trace_without_a_root_span_waits_longer() -> None:
    found = gathering()
    found.add(parse(trace_request(span(CHAT, ROOT, operation_name="chat"))), now_s=0.0)
    assert found.take(now_s=99.0) == Mapped()
    assert len(found.take(now_s=100.0).trajectories) == 1


def test_spans_and_records_that_are_sent_again_change_nothing() -> None:
    found = gathering(max_spans=6, max_bytes=1600)
    for _ in range(3):
        found.add(parse(desk()), now_s=0.0)
        found.add(parse(log_request(record(EVALUATED, **result()))), now_s=0.0)
        found.add(parse(log_request(record("gen_ai.user.message", body={"content": "Hello"}))), now_s=0.0)
    assert not found.dropped
    (made,) = found.take_all().trajectories
    assert len(made.turns) == 3
    assert made.turns[0].observation == [{"role": "user", "content": "Hello"}]
    assert made.outcome.quality == {"relevance": 0.75}


def test_messages_and_evaluation_results_in_logs_join_their_trace() -> None:
    found = gathering()
    details: dict[str, Any] = {
        "gen_ai.input.messages": '[{"role": "user", "content": "Now"}]',
        "gen_ai.output.messages": "[1]",
    }
    found.add(
        parse(
            log_request(
                record("gen_ai.client.inference.operation.details", **details),
                record("gen_ai.user.message", id=TOOL, body="Later"),
                record(EVALUATED, id=ROOT, **result()),
            )
        ),
        now_s=0.0,
    )
    assert found.take(now_s=50.0) == Mapped()  # its span is not over yet
    found.add(parse(trace_request(span(ROOT, name="a", operation_name="invoke_agent"))), now_s=50.0)
    found.add(parse(trace_request(span(CHAT, ROOT, at_ms=5, operation_name="chat"))), now_s=51.0)
    mapped = found.take(now_s=61.0)
    (made,) = mapped.trajectories
    assert (made.task, made.outcome.quality) == ("Now", {"relevance": 0.75})
    assert (made.turns[0].observation, made.turns[0].result) == ([{"role": "user", "content": "Now"}], [1])
    assert mapped.counts == {Reason.NO_SPAN: 1}


def test_what_arrives_after_its_trace_was_mapped_is_dropped_but_evaluation_results_are_not() -> None:
    found = gathering()
    found.add(parse(trace_request(span(ROOT, operation_name="invoke_agent"))), now_s=0.0)
    assert len(found.take(now_s=10.0).trajectories) == 1
    late = found.add(parse(trace_request(span(CHAT, ROOT, operation_name="chat"))), now_s=11.0)
    assert [one.reason for one in late] == [Reason.LATE]
    found.add(parse(log_request(record(EVALUATED, **result()))), now_s=12.0)
    mapped = found.take(now_s=22.0)
    assert [one.trajectory_id for one in mapped.evaluations] == [f"otel-{TRACE}"]
    assert (mapped.trajectories, found.dropped) == ((), {Reason.LATE: 1})


@pytest.mark.parametrize("limits", [{"max_traces": 1}, {"max_spans": 2}, {"max_bytes": 250}])
def test_beyond_its_limits_the_quietest_trace_is_dropped(limits: dict[str, int]) -> None:
    found = gathering(**limits)
    spans = [span(ROOT, operation_name="invoke_agent"), span(CHAT, ROOT, operation_name="chat")]
    assert found.add(parse(trace_request(*spans)), now_s=0.0) == ()
    other = span(ROOT, trace=OTHER_TRACE, operation_name="invoke_agent")
    dropped = found.add(parse(trace_request(other)), now_s=1.0)
    assert [one.reason for one in dropped] == [Reason.OVER_LIMIT] * 2
    assert found.dropped == {Reason.OVER_LIMIT: 2}
    assert [made.id for made in found.take_all().trajectories] == [f"otel-{OTHER_TRACE}"]


def test_a_trace_that_never_ends_is_dropped_and_no_other() -> None:
    found = gathering(max_trace_spans=3)
    other = span(ROOT, trace=OTHER_TRACE, operation_name="invoke_agent")
    found.add(parse(trace_request(other)), now_s=0.0)
    for n in range(10):
        found.add(parse(trace_request(span(f"{n + 1:016x}", ROOT, operation_name="chat"))), now_s=float(n))
    assert found.dropped == {Reason.OVER_LIMIT: 4, Reason.LATE: 6}
    assert [made.id for made in found.take_all().trajectories] == [f"otel-{OTHER_TRACE}"]
