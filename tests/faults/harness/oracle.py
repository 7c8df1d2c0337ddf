"""Checks a lake: every accepted event must be in each of its tables once, or in quarantine once, and nothing else.

A table is read in two ways. The newest snapshot is what queries return. The log is what readers of a change stream
receive, commit by commit: a file added by two commits is one file in the snapshot, but its rows reach a change reader
twice. A row counts as doubled if either way returns it twice.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileType

from deltaworks.control import paths
from deltaworks.tables.lake import Lake, arrow_path

Row = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of the check: `(table, event id)` and how often it occurs."""

    owed: int
    lost: Counter[Row]
    doubled: Counter[Row]
    strange: Counter[Row]
    ledger_gaps: tuple[int, ...]
    commits: int

    @property
    def is_exact(self) -> bool:
        """Whether nothing is lost, doubled or unexpected, and the ledger has every batch once."""
        return not (self.lost or self.doubled or self.strange or self.ledger_gaps)

    def __str__(self) -> str:
        return (
            f"rows owed {self.owed}, lost {self.lost.total()}, doubled {self.doubled.total()}, "
            f"strange {self.strange.total()}, ledger gaps {len(self.ledger_gaps)}"
        )


def judge(lake: Lake, pipeline: str, names: list[str], owed: Counter[Row]) -> Verdict:
    """Compares the tables `names` and quarantine with the expected events."""
    seen: Counter[Row] = Counter()
    commits = 0
    for name in [*names, "quarantine"]:
        table = lake.open(paths.table(pipeline, name))
        if table is None:
            continue
        column = "raw" if name == "quarantine" else "event_id"
        held = table.to_pyarrow_table(columns=[column]).column(column).to_pylist()
        seen.update((name, _identity(value, name)) for value in held)
        again, versions = added_again(lake, paths.table(pipeline, name), column)
        seen.update((name, _identity(value, name)) for value in again)
        commits += versions
    return Verdict(
        owed=owed.total(),
        lost=owed - seen,
        doubled=Counter({row: count - owed[row] for row, count in seen.items() if row in owed and count > owed[row]}),
        strange=Counter({row: count for row, count in seen.items() if row not in owed}),
        ledger_gaps=ledger_gaps(lake, pipeline),
        commits=commits,
    )


def _identity(value: str, table: str) -> str:
    """Returns the event's id; for a quarantine row, the id inside its raw payload."""
    return str(json.loads(value)["id"]) if table == "quarantine" else str(value)


def commits_of(lake: Lake, key: str) -> list[list[dict[str, Any]]]:
    """Returns the actions of every commit of a table, oldest first."""
    folder = f"{arrow_path(lake.storage, key)}/_delta_log"
    found = [
        info
        for info in lake.filesystem.get_file_info(FileSelector(folder, allow_not_found=True))
        if info.type == FileType.File
    ]
    commits = []
    for path in sorted(info.path for info in found if info.extension == "json" and info.base_name[:20].isdigit()):
        with lake.filesystem.open_input_stream(path) as stream:
            commits.append([json.loads(line) for line in stream.read().splitlines()])
    return commits


def added_again(lake: Lake, key: str, column: str) -> tuple[list[str], int]:
    """Returns values in files added while already present, once per repetition, and the number of commits.

    A file that a commit removed may be added again, for example by a restore.
    """
    commits = commits_of(lake, key)
    there: set[str] = set()
    again: Counter[str] = Counter()
    for actions in commits:
        there -= {action["remove"]["path"] for action in actions if "remove" in action}
        for action in actions:
            if (added := action.get("add")) is not None:
                again[added["path"]] += bool(added["dataChange"]) and added["path"] in there
                there.add(added["path"])
    values: list[str] = []
    for path, count in again.items():
        if count:
            with lake.filesystem.open_input_file(f"{arrow_path(lake.storage, key)}/{path}") as file:
                values += pq.read_table(file, columns=[column]).column(column).to_pylist() * count
    return values, len(commits)


def rows_in_folder(lake: Lake, pipeline: str, name: str) -> Counter[Row]:
    """Returns the rows of all files in a table's folder, including files that the log does not name."""
    selector = FileSelector(arrow_path(lake.storage, paths.table(pipeline, name)), recursive=True)
    files = [
        info.path
        for info in lake.filesystem.get_file_info(selector)
        if info.extension == "parquet" and "_delta_log" not in info.path
    ]
    seen: Counter[Row] = Counter()
    for path in files:
        with lake.filesystem.open_input_file(path) as file:
            seen.update((name, value) for value in pq.read_table(file, columns=["event_id"])["event_id"].to_pylist())
    return seen


def ledger_gaps(lake: Lake, pipeline: str) -> tuple[int, ...]:
    """Returns the batch ids that the ledger lacks or has more than once, up to its newest."""
    rows = lake.rows(paths.pipeline_control(pipeline, "checkpoint_store"), columns=["batch_id"])
    counts = Counter([] if rows is None else rows.column("batch_id").to_pylist())
    return tuple(batch for batch in range(max(counts, default=-1) + 1) if counts[batch] != 1)


def commits_after_takeover(lake: Lake, pipeline: str, names: list[str]) -> int:
    """Returns commits under an owner epoch that came after a commit of a later owner to the same table."""
    late = 0
    for name in [*names, "quarantine"]:
        highest = 0
        for actions in commits_of(lake, paths.table(pipeline, name)):
            for action in actions:
                if action.get("txn", {}).get("appId") == f"{pipeline}/owner":
                    late += action["txn"]["version"] < highest
                    highest = max(highest, action["txn"]["version"])
    return late
