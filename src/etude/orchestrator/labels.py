"""Labels: what people say about the success of logged workflows, one line each in `labels.jsonl` next to their log.

The last label of an execution counts. It overrides the logged outcome when the log is read to learn from it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import Struct

from etude.contracts.errors import LogError
from etude.contracts.reward import ExecutionReward
from etude.files.durable import PRIVATE
from etude.orchestrator.log import LABELS_FILE, UNREADABLE
from etude.orchestrator.record import Execution

SHOWN = 3
"""Ids named in a message."""
SAID_NO = "a person said that it did not succeed"


class Label(Struct, frozen=True, kw_only=True):
    """A person's word on one execution."""

    id: str  # of the execution
    success: bool
    time: str  # ISO 8601, UTC


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The labels of a folder of logs by the id of their execution, and which of them were met."""

    file: Path
    by_id: dict[str, Label]
    met: set[str] = field(default_factory=set)

    def apply(self, execution: Execution) -> Execution:
        """The execution with the outcome that a person gave it; as it is where it has no label."""
        label = self.by_id.get(execution.id)
        if label is None:
            return execution
        self.met.add(label.id)
        gained = ExecutionReward().success * (label.success - execution.success)
        return msgspec.structs.replace(
            execution,
            success=label.success,
            success_by="person",
            reward=execution.reward + gained,
            error=execution.error or ("" if label.success else SAID_NO),
            execution_result=msgspec.structs.replace(execution.execution_result, success=label.success),
        )

    def problem(self) -> str:
        """What is wrong with labels whose execution was not met; empty if there are none."""
        unknown = [id for id in self.by_id if id not in self.met]
        such = ", ".join(map(repr, unknown[:SHOWN]))
        if unknown and not self.met:
            return (
                f"{self.file}: belongs to other logs: none of its {len(unknown):,} ids, such as {such}, is in the log "
                "next to it; move it to its own log, or remove it"
            )
        count = f"{len(unknown):,} of {len(self.by_id):,} labels are"
        where = f"of executions that are not in the log, such as {such}; they change nothing"
        return f"{self.file}: {count} {where}" if unknown else ""

    def check(self) -> str:
        """The same as a warning; LogError if no label belongs to the log."""
        if self.by_id and not self.met:
            raise LogError(self.problem())
        return self.problem()


def read_labels(logs: Path) -> Labels:
    """The labels next to a folder's logs, or next to one of them; LogError names a line that is no label."""
    file = (logs if logs.is_dir() else logs.parent) / LABELS_FILE
    found: dict[str, Label] = {}
    try:
        lines: Sequence[bytes] = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        lines = ()
    except OSError as error:
        raise LogError(f"{file}: cannot be read ({error.strerror}): make it readable, or move it away") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            label = msgspec.json.decode(line, type=Label)
        except UNREADABLE as error:
            if number == len(lines):  # torn: its writer died over it
                continue
            raise LogError(
                f'{file}:{number}: {error}; expected {{"id": …, "success": true or false, "time": …}}: correct the '
                "line, or remove it"
            ) from error
        found[label.id] = label
    return Labels(file=file, by_id=found)


def append_label(file: Path, label: Label) -> None:
    """Add a line, durable and private; LogError if it cannot be written."""
    try:
        handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, PRIVATE)
        try:
            os.fchmod(handle, PRIVATE)
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            os.write(handle, b"\n" * torn + msgspec.json.encode(label) + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise LogError(
            f"{file}: cannot be written ({error.strerror}): make sure that the folder is writable and the disk has room"
        ) from error
