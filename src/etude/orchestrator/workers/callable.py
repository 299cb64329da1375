"""Any Python callable as a worker: it takes a subtask, or the parts of one that it names, and returns the output."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar, cast

from etude.contracts.errors import WorkersError
from etude.contracts.ports import Worker
from etude.contracts.suggestions import nearest
from etude.contracts.work import Fault, Reply, Subtask, WorkerError

T = TypeVar("T")
NAMES = ("subtask", "instruction", "inputs", "task_type", "description", "workflow_inputs", "parameters")
"""Arguments that a callable may name, besides the parameters of its task types."""


class CallableWorker(Worker):
    """Awaits an async callable; runs any other in a thread of its own, so that one that hangs blocks nothing else.

    A thread cannot be ended: a sync callable that is cancelled runs on until it returns, and its result is dropped.
    What it raises is a WorkerError: one of its own as it is, TimeoutError as TIMEOUT, other OSErrors as UNAVAILABLE,
    all else as UNKNOWN. A Reply is taken as it is; anything else is the output.
    """

    def __init__(
        self,
        name: str,
        call: Callable[..., Any],
        *,
        usd_per_call: float = 0.0,
        parameters: Mapping[str, bool] = {},  # of its task types: whether every subtask has it
    ) -> None:
        self.name = name
        self._usd = usd_per_call or None  # None: what the catalogue says
        self._call, self._names = call, argument_names(call, (*NAMES, *parameters), positional=1)
        _check_defaults(call, [name for name in self._names if not parameters.get(name, True)])

    def max_usd(self, subtask: Subtask) -> float | None:
        return self._usd

    async def do(self, subtask: Subtask) -> Reply:
        known = dict(subtask.parameters) | known_arguments(subtask)
        try:
            output = await call_anyhow(self._call, *arguments(self._names, known, (subtask,)))
        except WorkerError:
            raise
        except Exception as error:
            away = Fault.UNAVAILABLE if isinstance(error, OSError) else Fault.UNKNOWN
            fault = Fault.TIMEOUT if isinstance(error, TimeoutError) else away
            raise WorkerError(described(error), fault=fault, cost_usd=self._usd) from error
        return output if isinstance(output, Reply) else Reply(output=output, cost_usd=self._usd)


def known_arguments(subtask: Subtask) -> dict[str, Any]:
    """The arguments that a callable may name; the inputs of the workflow as their values."""
    values = {name: given.value for name, given in subtask.workflow_inputs.items()}
    known: dict[str, Any] = {name: getattr(subtask, name) for name in NAMES[1:]}
    return known | {"subtask": subtask, "workflow_inputs": values}


def _check_defaults(call: Callable[..., Any], names: Sequence[str]) -> None:
    """WorkersError if a callable requires a parameter that some of its subtasks do not have."""
    for name in names:
        argument = inspect.signature(call).parameters.get(name)
        if argument is not None and argument.default is argument.empty:
            raise WorkersError(
                f"{getattr(call, '__name__', call)} requires {name!r}, which not every subtask has: give it a default "
                "in Python, or make the parameter required in every task type of this worker"
            )


def described(error: BaseException) -> str:
    """What was raised, in a line."""
    text = ""
    with suppress(Exception):  # of an exception that cannot be shown
        text = str(error)[:500]
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def argument_names(call: Callable[..., Any], names: Sequence[str], *, positional: int) -> tuple[str, ...]:
    """Which of `names` a callable takes by name; none where it takes `positional` arguments in order.

    WorkersError where it can be called neither way.
    """
    if not callable(call):
        raise WorkersError(f"{call!r} cannot be called: expected a function")
    try:
        signature = inspect.signature(call)
    except (ValueError, TypeError):  # some of those written in C have none
        return ()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    set_before = call.keywords if isinstance(call, functools.partial) else ()
    taken = tuple(
        name
        for name, parameter in signature.parameters.items()
        if name in names and name not in set_before and parameter.kind in by_name
    )
    for found in (taken, () if taken else tuple(names)):
        with suppress(TypeError):
            signature.bind(*([None] * positional if not found else ()), **dict.fromkeys(found))
            return found
    raise WorkersError(
        f"{getattr(call, '__name__', call)}{signature} cannot be called with a subtask: expected {positional} "
        f"argument{'s' * (positional > 1)}, or any of those named {', '.join(names)}"
    )


def arguments(
    names: Sequence[str], known: Mapping[str, Any], positional: tuple[Any, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return ((), {name: known[name] for name in names if name in known}) if names else (positional, {})


async def call_anyhow(call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What an async callable, or one that is not, returns."""
    if inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None)):  # noqa: B004
        return await _uncancelled(call(*args, **kwargs))
    result = await in_thread(lambda: call(*args, **kwargs))
    return await _uncancelled(result) if inspect.isawaitable(result) else result


async def _uncancelled(awaitable: Any) -> Any:
    """CancelledError passes where this task is cancelled; one that the callable ran into itself is its failure."""
    try:
        return await awaitable
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise WorkerError("something that it waited for was cancelled", fault=Fault.UNKNOWN) from error


async def in_thread(call: Callable[[], T]) -> T:
    """What a call returns or raises, from a daemon thread: one that hangs keeps neither the loop nor the exit waiting.

    SystemExit and its like come as RuntimeError: they are about the thread.
    """
    outcome: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        result, raised = None, None
        try:
            result = context.run(call)
        except BaseException as error:
            usual = isinstance(error, Exception) and not isinstance(error, StopIteration | CancelledError)
            raised = error if usual else RuntimeError(described(error))
        if not outcome.set_running_or_notify_cancel():  # nothing waits; a coroutine never awaited would complain
            if inspect.iscoroutine(result):
                result.close()
        elif raised is not None:
            outcome.set_exception(raised)
        else:
            outcome.set_result(cast(T, result))

    threading.Thread(target=run, name="etude-call", daemon=True).start()
    return await asyncio.wrap_future(outcome)


def import_callable(name: str) -> Callable[..., Any]:
    """`package.module:function`, or `package.module:Class.method`; WorkersError says what cannot be found."""
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise WorkersError(f"{name!r} names no callable: expected package.module:function")
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise WorkersError(f"{name!r}: {module_name!r} cannot be imported: {described(error)}") from error
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            hint = nearest(part, dir(found))
            raise WorkersError(f"{name!r}: {getattr(found, '__name__', found)} has no {part!r}{hint}") from error
    if not callable(found):
        raise WorkersError(f"{name!r} is {type(found).__name__}, which cannot be called: expected a function")
    return found  # type: ignore[no-any-return]
