"""What a notification table was told between two of its versions: which batches changed rows, and where to look.

Taken from the Delta log: the statistics of a notification file name its batch, and its partition the organisation, so
that a poll costs one small object a commit. A file whose statistics leave that open is opened itself.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from deltaworks.errors import ContractError
from deltaworks.specs.mutation import ORG_COLUMN
from deltaworks.specs.table import TableSpec
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action, read_commits

BATCH, KIND = "batch", "batch_kind"


@dataclass(slots=True)
class Notified:
    """The batches that were told of by kind (`stream`, `mutation`), and what bounds the rows they changed.

    `orgs` and the entries of `dates` are None where a file did not tell. A date of None stands for rows without one.
    """

    batches: dict[str, set[int]] = field(default_factory=dict)
    orgs: set[str] | None = field(default_factory=set)
    dates: dict[str, set[dt.date | None] | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.batches)


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    partition: Mapping[str, str | None]
    statistics: Mapping[str, Any]


def notified_between(lake: Lake, key: str, told: TableSpec, *, after: int, up_to: int) -> Notified:
    """What came after version `after` and up to `up_to` of the notification table at `key`.

    Raises:
        ContractError: CHANGES_EXPIRED, CHANGES_STARTED_OVER.
    """
    return _gather(lake, key, told, _added(lake, key, after, up_to))


def notified_ever(lake: Lake, key: str, told: TableSpec, table: DeltaTable) -> Notified:
    """What the open notification table holds, as of its version."""
    files = [json.loads(text) for text in _snapshot_actions(table)]
    return _gather(lake, key, told, (_file(action) for action in files))


def _added(lake: Lake, key: str, after: int, up_to: int) -> Iterator[_File]:
    """The files that brought notifications; those that OPTIMIZE wrote bring none."""
    for version, actions in read_commits(lake, key, range(after + 1, up_to + 1)):
        if actions is None:
            raise ContractError(
                "CHANGES_EXPIRED",
                f"{lake.storage.uri(key)} no longer has version {version} in its log, and with it what changed then.",
                hint="Read everything anew with since=None, and poll more often than the log is kept "
                "(delta.logRetentionDuration).",
            )
        for action in actions:
            removed = action.get("remove")
            if removed is not None and removed.get("dataChange", True):
                raise ContractError(
                    "CHANGES_STARTED_OVER",
                    f"Version {version} of {lake.storage.uri(key)} takes notifications out: the pipeline was started "
                    "over, or the table restored, and the rows that were read before may be others now.",
                    hint="Empty what was derived and read everything anew with since=None.",
                )
            if action.get("add") is not None and action["add"].get("dataChange", True):
                yield _file(action["add"])


def _snapshot_actions(table: DeltaTable) -> Iterator[str]:
    """The add actions of a snapshot, in the form the log has them."""
    adds = pa.table(table.get_add_actions(flatten=False))
    for row in adds.to_pylist():
        statistics = {"minValues": row.get("min"), "maxValues": row.get("max"), "nullCount": row.get("null_count")}
        action = {
            "path": row["path"],
            "partitionValues": row.get("partition") or {},
            "stats": json.dumps(statistics, default=str),
        }
        yield json.dumps(action, default=str)


def _file(action: Action) -> _File:
    text = action.get("stats")
    return _File(unquote(action["path"]), action.get("partitionValues") or {}, json.loads(text) if text else {})


def _gather(lake: Lake, key: str, told: TableSpec, files: Iterable[_File]) -> Notified:
    dates = [column.name for column in told.columns if column.type == "date"]
    found = Notified(dates={name: set() for name in dates})
    for file in files:
        kind, batch = _the_value(file, KIND), _the_value(file, BATCH)
        if isinstance(kind, str) and isinstance(batch, int):
            found.batches.setdefault(kind, set()).add(batch)
        else:
            for kind, batch in _opened(lake, key, file):
                found.batches.setdefault(kind, set()).add(batch)
        if found.orgs is not None:
            org = file.partition.get(ORG_COLUMN)
            found.orgs = None if org is None else found.orgs | {org}
        for name in dates:
            known = found.dates[name]
            bounds = _date_bounds(file, name)
            found.dates[name] = None if known is None or bounds is None else known | bounds
    return found


def _the_value(file: _File, column: str) -> Any:
    """The one value a file has of a column, None where its statistics do not say that it is one."""
    least, greatest = ((file.statistics.get(bound) or {}).get(column) for bound in ("minValues", "maxValues"))
    return least if least == greatest and not (file.statistics.get("nullCount") or {}).get(column) else None


def _date_bounds(file: _File, column: str) -> set[dt.date | None] | None:
    """The least and the greatest date of a file, with None where rows have none; None where it is not said."""
    if column in file.partition:
        value = file.partition[column]
        return {None if value is None else dt.date.fromisoformat(value)}
    least, greatest = ((file.statistics.get(bound) or {}).get(column) for bound in ("minValues", "maxValues"))
    nulls = (file.statistics.get("nullCount") or {}).get(column)
    if least is None or greatest is None or nulls is None:
        return None
    return {dt.date.fromisoformat(least), dt.date.fromisoformat(greatest), *([None] if nulls else [])}


def _opened(lake: Lake, key: str, file: _File) -> list[tuple[str, int]]:
    """The kinds and batches in a file, read from itself.

    Raises:
        ContractError: CHANGES_EXPIRED where VACUUM has removed it.
    """
    path = f"{arrow_path(lake.storage, key)}/{file.path}"
    try:
        with lake.filesystem.open_input_file(path) as source:
            rows = pq.read_table(source, columns=[KIND, BATCH])
    except FileNotFoundError as error:
        raise ContractError(
            "CHANGES_EXPIRED",
            f"{lake.storage.uri(key)}/{file.path} is gone: VACUUM removed it after its rows were moved together.",
            hint="Read everything anew with since=None, and poll more often than VACUUM's retention.",
        ) from error
    rows = rows.filter(pc.and_(pc.is_valid(rows.column(KIND)), pc.is_valid(rows.column(BATCH))))
    pairs = rows.group_by([KIND, BATCH]).aggregate([])
    return list(zip(pairs.column(KIND).to_pylist(), pairs.column(BATCH).to_pylist(), strict=True))
