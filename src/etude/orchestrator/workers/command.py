"""A command line as a worker: the subtask goes in on stdin, what comes out on stdout is the output.

A process gets a group of its own, and nothing of that group outlives it: what it leaves in the background is killed
when it ends, and all of it when the attempt is cancelled.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, cast

import msgspec

from etude.contracts.errors import WorkersError
from etude.contracts.ports import Worker
from etude.contracts.work import Fault, Reply, Subtask, WorkerError
from etude.orchestrator.workers.template import INPUT, Template, as_text, needs_input, workflow_input

Command = Sequence[str] | str

GRACE_S = 1.0
"""Between SIGTERM and SIGKILL."""
DRAIN_S = 1.0
"""How long output is waited for after the end, where a process that left the group still holds the pipe."""
TAIL_BYTES = 4096
PIPE_BYTES = 2**16
SHELL = "/bin/sh"
MAX_ARGUMENT_BYTES = 1 << 15
"""Maximum length of an argument or an environment variable; systems allow 128 KiB or less."""
INPUT_FILE = "input_file"
"""A variable of commands: the path of a file with the input."""

FAULTS = {
    64: Fault.WRONG_INPUT,  # EX_USAGE
    65: Fault.WRONG_INPUT,  # EX_DATAERR
    69: Fault.UNAVAILABLE,  # EX_UNAVAILABLE
    75: Fault.RATE_LIMIT,  # EX_TEMPFAIL
    124: Fault.TIMEOUT,  # as timeout(1) has it
}
"""By exit code, those of sysexits.h. Any other but 0 is UNKNOWN."""


class CommandWorker(Worker):
    """Runs a program for each subtask.

    A list is run as it is, without a shell, each argument after the program a template with the variables of prompts.
    Where a text may begin with a dash, put "--" before it. A str is run by the shell, and nothing is filled in: a text
    would be run too. Either reads {"instruction", "task_type", "description", "inputs": [{"task_type", "output"}]} on
    stdin, with "files" and "parameters" where there are any, or `stdin` as a template.

    A text of any length goes to stdin or into a file: {input_file} is the path of a file with {input}, and in arguments
    {input.NAME} the path of an input of the workflow. An argument that is longer than MAX_ARGUMENT_BYTES is refused.
    In its environment are ETUDE_TASK_TYPE, ETUDE_WORKFLOW, ETUDE_NODE, the paths ETUDE_INPUT_NAME of the workflow's
    inputs and the parameters ETUDE_PARAM_NAME, with names in capitals.

    An object or a list in JSON on stdout is decoded; all else is text, without the last line's end.
    """

    def __init__(
        self,
        name: str,
        *,
        command: Command,
        stdin: str | None = None,  # a template; None: the subtask as JSON
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,  # in addition to the variables of this process
        usd_per_call: float = 0.0,  # 0: what the catalogue says
        max_bytes: int = 1_000_000,  # of stdout
    ) -> None:
        self.name = name
        self._command, self._cwd, self._env = checked_command(command), cwd, dict(env or {})
        self._arguments = _templates(self._command)
        self._stdin = None if stdin is None else Template("stdin", stdin, more=(INPUT_FILE,))
        self._usd, self._max_bytes = usd_per_call or None, max_bytes

    async def check(self) -> None:
        check_program(self._command, cwd=self._cwd, env=self._env)

    def check_subtask(self, subtask: Subtask) -> None:
        if self._stdin is not None:
            self._stdin.render(subtask, **{INPUT_FILE: ""})
        for i, argument in enumerate(self._filled(subtask, "") if not isinstance(self._command, str) else ()):
            _check_length(f"argument {i} of command, {self._command[i]!r:.60}, is", argument)
        for name, value in subtask_variables(subtask).items():
            _check_length(f"the variable {name} is", value)

    def needs_input(self, task_type: str) -> bool:
        return needs_input(*self._arguments, self._stdin)

    def max_usd(self, subtask: Subtask) -> float | None:
        return self._usd

    async def do(self, subtask: Subtask) -> Reply:
        self.check_subtask(subtask)
        uses_file = any(INPUT_FILE in template.variables for template in (*self._arguments, self._stdin) if template)
        try:
            with _input_file(subtask) if uses_file else nullcontext("") as file:
                stdin = _request(subtask) if self._stdin is None else self._stdin.render(subtask, **{INPUT_FILE: file})
                ran = await run_process(
                    self._filled(subtask, file),
                    stdin=stdin.encode("utf-8", "replace"),
                    env=self._env | subtask_variables(subtask),
                    cwd=self._cwd,
                    max_bytes=self._max_bytes,
                )
        except OSError as error:
            fault = Fault.WRONG_INPUT if error.errno == errno.E2BIG else Fault.UNAVAILABLE
            raise WorkerError(f"{self._program()!r} cannot be run: {error}", fault=fault, cost_usd=0.0) from error
        except ValueError as error:  # a null character in an argument
            raise WorkerError(
                f"{self._program()!r} cannot be given this: {error}", fault=Fault.WRONG_INPUT, cost_usd=0.0
            ) from error
        if ran.overflowed:
            raise self._failed(f"wrote more than {self._max_bytes:,} bytes", Fault.INVALID_OUTPUT)
        if ran.code != 0:
            raise self._failed(ran.ending(), FAULTS.get(ran.code, Fault.UNKNOWN))
        return Reply(output=_decoded(ran.stdout.decode("utf-8", "replace")), cost_usd=self._usd)

    def _filled(self, subtask: Subtask, input_file: str) -> Command:
        if isinstance(self._command, str):
            return self._command
        variables = {name for argument in self._arguments for name in argument.variables if name.startswith(INPUT)}
        paths = {name: workflow_input(subtask, name.removeprefix(INPUT)).path for name in variables}
        paths[INPUT_FILE] = input_file
        filled = [argument.render(subtask, **paths).encode("utf-8", "replace").decode() for argument in self._arguments]
        return [self._command[0], *filled]

    def _program(self) -> str:
        return self._command if isinstance(self._command, str) else self._command[0]

    def _failed(self, what: str, fault: Fault) -> WorkerError:
        return WorkerError(f"{self._program()!r} {what}", fault=fault, cost_usd=self._usd)


def checked_command(command: Command) -> Command:
    """A command that could be run; WorkersError otherwise."""
    if isinstance(command, str):
        if not command.strip() or "\0" in command:
            raise WorkersError(f"command is {command!r}: expected a line for the shell, or a list such as [wc, -w]")
        return command
    parts = list(command)
    if not parts or not all("\0" not in part for part in parts) or not parts[0]:
        raise WorkersError(f"command is {parts!r}: expected a program and its arguments, such as [wc, -w]")
    return parts


def _templates(command: Command) -> list[Template]:
    """Of the arguments. The program itself is not up to the subtask."""
    if isinstance(command, str):
        return []
    if Template("the program of command", command[0]).variables:
        raise WorkersError(f"the program of command is {command[0]!r}: variables may only stand in its arguments")
    return [
        Template(f"argument {i} of command", text, more=(INPUT_FILE,)) for i, text in enumerate(command[1:], start=1)
    ]


def _check_length(what: str, text: str) -> None:
    """WorkerError for a text that is too long for an argument or a variable."""
    if (size := len(text.encode("utf-8", "replace"))) > MAX_ARGUMENT_BYTES:
        raise WorkerError(
            f"{what} too long: {size:,} bytes, expected at most {MAX_ARGUMENT_BYTES:,}; pass a long text by stdin, "
            "or as a file by {input_file} or {input.NAME}",
            fault=Fault.WRONG_INPUT,
            cost_usd=0.0,
        )


@contextmanager
def _input_file(subtask: Subtask) -> Iterator[str]:
    """The path of a private file with the last input of a subtask."""
    if not subtask.inputs:
        raise WorkerError("it has no input to put into a file", fault=Fault.WRONG_INPUT, cost_usd=0.0)
    last = subtask.inputs[-1]
    if last.name:
        yield workflow_input(subtask, last.name).path
        return
    with TemporaryDirectory(prefix="etude-input-") as folder:
        file = Path(folder) / "input.txt"
        content = last.output if isinstance(last.output, bytes) else as_text(last.output).encode("utf-8", "replace")
        file.write_bytes(content)
        yield str(file)


def check_program(command: Command, *, cwd: str | Path | None = None, env: Mapping[str, str] | None = None) -> None:
    """Raises WorkersError where the program (of a line for the shell: the shell) or its folder is not there."""
    if cwd is not None and not os.path.isdir(cwd):
        raise WorkersError(f"cwd is {str(cwd)!r}, which is no folder: make it, or correct cwd")
    program = SHELL if isinstance(command, str) else command[0]
    # As exec has it: a path is looked for from the child's folder, a bare name along the child's PATH.
    path = os.path.join(cwd or "", program) if os.sep in program else program
    if shutil.which(path, path=(os.environ | dict(env or {})).get("PATH")) is None:
        there = (
            "may not be executed: chmod +x it" if os.path.isfile(path) else "is not there: install it, or give its path"
        )
        raise WorkersError(f"the program {program!r} {there}")


def subtask_variables(subtask: Subtask) -> dict[str, str]:
    """The environment variables that say what a process is run for."""
    variables = {
        "ETUDE_TASK_TYPE": subtask.task_type,
        "ETUDE_WORKFLOW": subtask.workflow,
        "ETUDE_NODE": str(subtask.node),
        **{f"ETUDE_INPUT_{name.upper()}": given.path for name, given in subtask.workflow_inputs.items()},
        **{f"ETUDE_PARAM_{name.upper()}": as_text(value) for name, value in subtask.parameters.items()},
    }
    return {name: value.encode("utf-8", "replace").decode().replace("\0", "") for name, value in variables.items()}


def _request(subtask: Subtask) -> str:
    made = [
        ({"name": given.name} if given.name else {"task_type": given.task_type})
        | ({} if given.name and isinstance(given.output, bytes) else {"output": given.output})  # its file has it
        for given in subtask.inputs
    ]
    asked = {"instruction": subtask.instruction, "task_type": subtask.task_type, "description": subtask.description}
    files = {name: given.path for name, given in subtask.workflow_inputs.items()}
    more = {name: value for name, value in (("files", files), ("parameters", dict(subtask.parameters))) if value}
    try:
        return json.dumps(asked | {"inputs": made} | more, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise WorkerError(f"an input is no JSON: {error}", fault=Fault.WRONG_INPUT, cost_usd=0.0) from error


def _decoded(text: str) -> Any:
    """msgspec is strict: what is decoded can be encoded again."""
    if text.lstrip()[:1] in ("{", "["):
        with suppress(msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return msgspec.json.decode(text)
    return text.removesuffix("\n").removesuffix("\r")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """A process that ended."""

    code: int  # negative: the signal that ended it
    stdout: bytes
    stderr: bytes  # its end
    overflowed: bool  # it wrote too much, and was killed

    def last_line(self) -> str:
        """The last that it said, on stderr or else on stdout."""
        for stream in (self.stderr, self.stdout[-TAIL_BYTES:]):
            if said := stream.decode("utf-8", "replace").strip():
                return said.splitlines()[-1][:300]
        return ""

    def ending(self) -> str:
        how = f"ended with exit code {self.code}" if self.code >= 0 else f"was ended by {_signal_name(-self.code)}"
        return f"{how}: {self.last_line()}".removesuffix(": ")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def run_process(
    command: Command,
    *,
    stdin: bytes,
    env: Mapping[str, str],  # in addition to the variables of this process
    cwd: str | Path | None = None,
    max_bytes: int | None = None,  # of stdout, beyond which it is killed; None: only its end is kept
) -> Ran:
    """Runs a process to its end. OSError or ValueError where it cannot be started.

    Cancelled, it ends the whole group, SIGTERM and after GRACE_S SIGKILL, and returns when it is reaped. Cancelled once
    more meanwhile, it kills it at once and does not wait.
    """
    run = _Run(command, stdin, dict(os.environ) | dict(env), cwd, max_bytes)
    try:
        await asyncio.shield(run.ended)
    except asyncio.CancelledError:
        run.stop()
        try:
            await asyncio.wait([run.ended])
        except asyncio.CancelledError:
            run.signal(signal.SIGKILL)
        raise
    return run.ran()


class _Run:
    """One process, from start to reaped, in callbacks of the loop and a thread that waits for its end.

    Starting it is one step: asyncio's own subprocesses, cancelled while they start, may never come back. The thread
    needs no loop: what the process leaves is ended, and the process reaped, even where the loop is closed.
    """

    def __init__(
        self, command: Command, stdin: bytes, env: dict[str, str], cwd: str | Path | None, max_bytes: int | None
    ) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop, self._max_bytes = self.ended.get_loop(), max_bytes
        self._kept = {1: bytearray(), 2: bytearray()}
        self._unsent, self._overflowed, self._reaped = memoryview(stdin), False, False
        self._lock = threading.Lock()  # no signal goes to a number that may be another's by now
        self._timers: list[asyncio.TimerHandle] = []
        self._process = subprocess.Popen(
            command,
            shell=isinstance(command, str),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            cwd=cwd,
            env=env,
        )
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._pipes = {fd: cast(IO[bytes], pipe) for fd, pipe in enumerate(pipes)}
        for pipe in self._pipes.values():
            os.set_blocking(pipe.fileno(), False)
        self._loop.add_writer(self._pipes[0].fileno(), self._write)
        for fd in (1, 2):
            self._loop.add_reader(self._pipes[fd].fileno(), self._read, fd)
        try:
            threading.Thread(target=self._wait, name="etude-process", daemon=True).start()
        except RuntimeError as error:  # there are too many
            self.signal(signal.SIGKILL)
            self._process.wait()
            self._close(0, 1, 2)
            raise OSError(errno.EAGAIN, str(error)) from error

    def stop(self) -> None:
        self.signal(signal.SIGTERM)
        self._timers.append(self._loop.call_later(GRACE_S, self.signal, signal.SIGKILL))

    def signal(self, number: signal.Signals) -> None:
        """To the group, whose leader the process is."""
        with self._lock, suppress(ProcessLookupError, PermissionError):
            if not self._reaped:
                os.killpg(self._process.pid, number)

    def ran(self) -> Ran:
        return Ran(
            code=self._process.returncode,
            stdout=bytes(self._kept[1]),
            stderr=bytes(self._kept[2]),
            overflowed=self._overflowed,
        )

    def _write(self) -> None:
        try:
            sent = os.write(self._pipes[0].fileno(), self._unsent[:PIPE_BYTES])
        except BlockingIOError:
            return
        except OSError:  # it does not read, or not on
            sent = len(self._unsent)
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._close(0)

    def _read(self, fd: int) -> None:
        try:
            data = os.read(self._pipes[fd].fileno(), PIPE_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._close(fd)
            return
        kept = self._kept[fd]
        kept += data
        if fd == 2 or self._max_bytes is None:
            del kept[:-TAIL_BYTES]
        elif len(kept) > self._max_bytes:
            kept.clear()
            self._overflowed = True
            self.signal(signal.SIGKILL)

    def _wait(self) -> None:
        """In the thread: waits for the end, ends what is left in the background, reaps, and tells the loop."""
        if hasattr(os, "waitid"):  # not on every macOS
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        self.signal(signal.SIGKILL)  # as it is not reaped yet, the number is still its own
        with self._lock:
            self._process.wait()
            self._reaped = True
        try:
            self._loop.call_soon_threadsafe(self._exited)
        except RuntimeError:  # the loop is closed: nothing waits
            for pipe in self._pipes.values():
                pipe.close()

    def _exited(self) -> None:
        self._timers.append(self._loop.call_later(DRAIN_S, self._close, 0, 1, 2))
        self._close(0)

    def _close(self, *fds: int) -> None:
        for fd in fds:
            if pipe := self._pipes.pop(fd, None):
                (self._loop.remove_reader if fd else self._loop.remove_writer)(pipe.fileno())
                pipe.close()
        if not self._pipes and self._reaped and not self.ended.done():
            for timer in self._timers:
                timer.cancel()
            self.ended.set_result(None)
