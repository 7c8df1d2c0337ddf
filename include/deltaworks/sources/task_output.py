"""The output of a task, and its serialization to the driver.

A batch is prepared from these outputs only, so exactly-once depends on them: a file that no output contains is not
committed. Outputs are merged in task order, regardless of their arrival order.
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
    """The files and findings of one task.

    Attributes:
        task: its number in the pass, from 0; payloads of lower numbers come first.
        files: files written, by table, in row order.
        findings: results other than rows, including the error that must stop the stream.
        first_ids: per table that flags duplicates, hashes of the ids in order of first occurrence, 16 bytes each.
        read_statistics: how much of a stream the task read.
        read_ranges: ranges of a stream the task read, from the source's `LossCheck`; plain JSON values.
    """

    task: int = 0
    files: Mapping[str, tuple[WrittenFile, ...]] = field(default_factory=dict)
    findings: TaskFindings = field(default_factory=TaskFindings)
    first_ids: Mapping[str, bytes] = field(default_factory=dict)
    read_statistics: ReadStatistics = field(default_factory=ReadStatistics)
    read_ranges: tuple[Any, ...] = ()

    def encode(self) -> bytes:
        """Serializes the output: the length of a JSON header, the header, and the raw hashes."""
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
        """Deserializes the bytes from `encode`."""
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
    # `asdict` copies nested values, which takes longer than everything else here.
    return {name: getattr(file, name) for name in WrittenFile.__slots__}


def sort_by_task(outputs: Iterable[TaskOutput]) -> list[TaskOutput]:
    """Returns the outputs of a pass in task order, which is the order of the payloads."""
    return sorted(outputs, key=lambda output: output.task)


def sum_read_statistics(outputs: Iterable[TaskOutput]) -> ReadStatistics:
    """Returns the total statistics of all tasks."""
    total = ReadStatistics()
    for output in outputs:
        total.add(output.read_statistics)
    return total
