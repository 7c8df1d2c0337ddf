"""What each task of the one pass over a batch hands to the driver, and how it travels there.

A batch is fixed from these outputs and from nothing else, so they are what exactly-once rests on: files that are in no
output are in no commit. Outputs are merged in the order of their tasks, whatever order they arrive in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from deltaworks.events.task_findings import TaskFindings
from deltaworks.sources.records import ReadStatistics
from deltaworks.tables.files import WrittenFile

_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutput:
    """The result of one task.

    Attributes:
        task: its number in the pass, from 0; payloads of lower numbers come before those of higher ones.
        files: the files written, by table and in the order of their rows.
        findings: what was noted beside rows, among it the error that must stop the stream.
        first_ids: of each table that flags copies, hashes of the ids that the task met first, 16 bytes an id.
        read: how much of a stream the task read.
        seen: which ranges of a stream the task read, as the source's `LossCheck` notes them; plain JSON values.
    """

    task: int = 0
    files: Mapping[str, tuple[WrittenFile, ...]] = field(default_factory=dict)
    findings: TaskFindings = field(default_factory=TaskFindings)
    first_ids: Mapping[str, bytes] = field(default_factory=dict)
    read_statistics: ReadStatistics = field(default_factory=ReadStatistics)
    read_ranges: tuple[Any, ...] = ()

    def encode(self) -> bytes:
        """As it travels to the driver: the length of a JSON header, the header, and the hashes as they are."""
        header = {
            "task": self.task,
            "files": {table: [_file_record(file) for file in files] for table, files in self.files.items()},
            "findings": self.findings.as_record(),
            "first_ids": {table: len(ids) for table, ids in self.first_ids.items()},
            "read_statistics": asdict(self.read_statistics),
            "read_ranges": self.read_ranges,
        }
        text = json.dumps(header).encode()
        return b"".join([len(text).to_bytes(_LENGTH_BYTES), text, *self.first_ids.values()])

    @classmethod
    def decode(cls, data: bytes) -> TaskOutput:
        """The reverse of `encode`."""
        at = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES])
        header = json.loads(data[_LENGTH_BYTES:at])
        first_ids = {}
        for table, length in header["first_ids"].items():
            first_ids[table] = bytes(data[at : at + length])
            at += length
        return cls(
            task=header["task"],
            files={table: tuple(WrittenFile(**file) for file in files) for table, files in header["files"].items()},
            findings=TaskFindings.from_record(header["findings"]),
            first_ids=first_ids,
            read_statistics=ReadStatistics(**header["read_statistics"]),
            read_ranges=tuple(header["read_ranges"]),
        )


def _file_record(file: WrittenFile) -> dict[str, Any]:
    # `asdict` copies what is inside, which takes longer than all the rest.
    return {name: getattr(file, name) for name in WrittenFile.__slots__}


def sort_by_task(outputs: Iterable[TaskOutput]) -> list[TaskOutput]:
    """The outputs of a pass in the order of its tasks, which is that of the payloads."""
    return sorted(outputs, key=lambda output: output.task)


def sum_read_statistics(outputs: Iterable[TaskOutput]) -> ReadStatistics:
    """How much all tasks read."""
    total = ReadStatistics()
    for output in outputs:
        total.add(output.read_statistics)
    return total
