"""What a reprocess is, in three objects that are created once: its plan, the files it wrote, and its end.

Whoever goes on after a crash reads them and does what is missing: with a plan alone the objects are read again, with
the files they are committed, with the end nothing is left to do.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import decode_record
from deltaworks.errors import ConfigError, ContractError

FORMAT = 1
Mode = Literal["in_place", "shadow"]
_ID = re.compile(r"[a-z0-9][a-z0-9_]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessPlan:
    """What is read again and where its rows go. `ranges` are of `seq`, both ends included.

    `whole` says that all tables and quarantine are made anew; else only `tables` get rows, and quarantine loses those
    that landed in them.
    """

    pipeline: str
    id: str
    mode: Mode
    tables: tuple[str, ...]
    whole: bool
    selection: dict[str, Any]
    up_to_batch: int
    ranges: tuple[tuple[int, int], ...]
    objects: int
    source_bytes: int
    allow_missing: bool
    spec_fingerprint: str
    code_version: str
    by: str
    run: str
    at: str
    generation: int = 1
    format: int = FORMAT

    @classmethod
    def decode(cls, data: bytes, *, key: str) -> ReprocessPlan:
        """Read the object.

        Raises:
            ContractError: REPROCESS_RECORD_UNREADABLE.
        """

        def make(record: dict[str, Any]) -> ReprocessPlan:
            ranges = tuple((first, last) for first, last in record.pop("ranges"))
            return cls(**{**record, "tables": tuple(record["tables"])}, ranges=ranges)

        return decode_record(data, make, expected=FORMAT, unreadable=partial(_unreadable, key))


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """The new rows of one table, in files of the staging folder, and the seqs whose old rows they replace."""

    table: str
    rows: int
    files: tuple[str, ...]
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFiles:
    """What the pass over the objects wrote.

    `gone` are keys of objects that could not be read: their rows stay. `not_fitting` are events without a place in the
    tables that were asked for; `kept_in_quarantine` are rows there that would also land in tables not asked for.
    """

    tables: tuple[StagedTable, ...]
    gone: tuple[str, ...]
    not_fitting: int
    kept_in_quarantine: int
    format: int = FORMAT

    @classmethod
    def decode(cls, data: bytes, *, key: str) -> StagedFiles:
        """Read the object.

        Raises:
            ContractError: REPROCESS_RECORD_UNREADABLE.
        """

        def make(record: dict[str, Any]) -> StagedFiles:
            tables = tuple(
                StagedTable(
                    table=each["table"],
                    rows=each["rows"],
                    files=tuple(each["files"]),
                    ranges=tuple((first, last) for first, last in each["ranges"]),
                )
                for each in record.pop("tables")
            )
            return cls(**{**record, "gone": tuple(record["gone"])}, tables=tables)

        return decode_record(data, make, expected=FORMAT, unreadable=partial(_unreadable, key))


class ReprocessRecords:
    """The three objects of one reprocess."""

    def __init__(self, objects: ObjectStore, pipeline: str, reprocess_id: str) -> None:
        if not _ID.fullmatch(reprocess_id):
            raise ConfigError(
                "REPROCESS_ID_INVALID",
                f"{reprocess_id!r} cannot name a reprocess.",
                hint="Use at most 40 lower-case letters, digits and underscores.",
            )
        self._objects = objects
        self.id = reprocess_id
        self._plan = paths.reprocess(pipeline, f"{reprocess_id}.json")
        self._files = paths.reprocess(pipeline, f"{reprocess_id}/files.json")
        self._end = paths.reprocess(pipeline, f"{reprocess_id}/done.json")

    def plan(self) -> ReprocessPlan | None:
        """The plan, None before there is one."""
        found = self._objects.get(self._plan)
        return None if found is None else ReprocessPlan.decode(found.data, key=self._plan)

    def files(self) -> StagedFiles | None:
        """What the pass wrote, None before it has ended."""
        found = self._objects.get(self._files)
        return None if found is None else StagedFiles.decode(found.data, key=self._files)

    def end(self) -> list[dict[str, Any]] | None:
        """What became of each table, None before all are done."""
        found = self._objects.get(self._end)
        if found is None:
            return None
        unreadable = partial(_unreadable, self._end)
        return decode_record(found.data, lambda record: list(record["tables"]), expected=FORMAT, unreadable=unreadable)

    def fix_plan(self, plan: ReprocessPlan) -> ReprocessPlan:
        """Create the plan; the one that is there where somebody was first."""
        self._objects.put_if_absent(self._plan, _encoded(asdict(plan)))
        fixed = self.plan()
        assert fixed is not None
        return fixed

    def fix_files(self, files: StagedFiles) -> StagedFiles:
        """Create the record of files; the one that is there where somebody was first."""
        self._objects.put_if_absent(self._files, _encoded(asdict(files)))
        fixed = self.files()
        assert fixed is not None
        return fixed

    def fix_end(self, tables: list[dict[str, Any]]) -> None:
        """Note that all is done."""
        self._objects.put_if_absent(self._end, _encoded({"tables": tables, "format": FORMAT}))


def new_reprocess_id() -> str:
    """An id from the clock, to the second."""
    return utc_now().strftime("r%Y%m%d_%H%M%S")


def reprocess_id_of_run(run_id: str) -> str:
    """The id of what one Airflow run does, the same for every try of its task."""
    return "run_" + hashlib.sha256(run_id.encode()).hexdigest()[:12]


def _encoded(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":"), default=str).encode()


def _unreadable(key: str, error: Exception) -> ContractError:
    return ContractError(
        "REPROCESS_RECORD_UNREADABLE",
        f"{key} is no record of a reprocess this release can read: {error}.",
        hint="Run the release that wrote it, or begin a new reprocess under another id.",
    )
