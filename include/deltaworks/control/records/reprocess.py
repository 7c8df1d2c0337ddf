"""Records of a reprocess: three objects created once, for its plan, its staged files and its completion.

After a crash the next run does what is missing: with only a plan it re-reads the input, with staged files it commits
them, with a completion there is nothing to do.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore
from deltaworks.errors import ConfigError

_KIND = RecordKind(
    noun="record of a reprocess",
    unreadable_condition="REPROCESS_RECORD_UNREADABLE",
    hint="Run the release that wrote it, or begin a new reprocess under another id.",
)
ReprocessMode = Literal["in_place", "shadow"]
_ID = re.compile(r"[a-z0-9][a-z0-9_]{0,39}")
#: The lease on re-reading, in the same folder as the plans.
LEASE_NAME: Final = "lease.json"


class ReprocessPlan(Record):
    """The input to re-read and the target of its rows.

    Each of `ranges` is a `seq` range, both ends included; `objects` counts objects or, for a stream source, batches.
    With `all_tables` all tables and quarantine are recreated. Otherwise only `tables` get rows, and quarantined rows
    that were written to one of them are deleted.
    """

    kind: ClassVar[RecordKind] = _KIND

    pipeline: str
    id: str
    mode: ReprocessMode
    tables: tuple[str, ...]
    all_tables: bool
    selection: dict[str, Any]
    through_batch: int
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


class StagedTable(RecordPart):
    """The new rows of one table, in files of the staging folder, and the seq ranges whose old rows they replace."""

    table: str
    rows: int
    files: tuple[str, ...]
    ranges: tuple[tuple[int, int], ...]


class StagedFiles(Record):
    """The staged files and the input that could not be used.

    Args:
        missing: object keys or record ranges that could not be read; their rows stay.
        origins: ranges read from the `source` and from the `archive`.
        unmatched_events: events that belong to none of the requested tables.
        still_quarantined: quarantined rows that would also produce rows in tables that were not requested.
    """

    kind: ClassVar[RecordKind] = _KIND

    tables: tuple[StagedTable, ...]
    missing: tuple[str, ...]
    unmatched_events: int
    still_quarantined: int
    origins: dict[str, int] = Field(default_factory=dict)


class ReprocessCompletion(Record):
    """The completion of a reprocess: the result of each table, as `TableReprocessResult` mappings."""

    model_config = ConfigDict(extra="ignore")
    kind: ClassVar[RecordKind] = _KIND

    tables: tuple[dict[str, Any], ...]


def reprocess_ids(objects: ObjectStore, pipeline: str) -> list[str]:
    """Returns the ids of a pipeline's reprocesses, completed ones included."""
    folder = paths.reprocess(pipeline, "") + "/"
    names = (key.removeprefix(folder) for key in objects.list(folder))
    return sorted(name.removesuffix(".json") for name in names if "/" not in name and name != LEASE_NAME)


class ReprocessRecords:
    """The three objects of one reprocess."""

    def __init__(self, objects: ObjectStore, pipeline: str, reprocess_id: str) -> None:
        if not _ID.fullmatch(reprocess_id) or f"{reprocess_id}.json" == LEASE_NAME:
            raise ConfigError("REPROCESS_ID_INVALID", f"{reprocess_id!r} is not a valid reprocess id.")
        self.id = reprocess_id
        self._plan_key = paths.reprocess(pipeline, f"{reprocess_id}.json")
        self._files_key = paths.reprocess(pipeline, f"{reprocess_id}/files.json")
        self._end_key = paths.reprocess(pipeline, f"{reprocess_id}/done.json")
        self._plans = RecordStore(objects, ReprocessPlan)
        self._files = RecordStore(objects, StagedFiles)
        self._ends = RecordStore(objects, ReprocessCompletion)

    def plan(self) -> ReprocessPlan | None:
        """Reads the plan; None before it is created.

        Raises:
            ContractError: REPROCESS_RECORD_UNREADABLE.
        """
        return self._plans.read(self._plan_key)

    def files(self) -> StagedFiles | None:
        """Reads the staged files; None before re-reading is complete.

        Raises:
            ContractError: REPROCESS_RECORD_UNREADABLE.
        """
        return self._files.read(self._files_key)

    def completion(self) -> ReprocessCompletion | None:
        """Reads the result of each table; None before all are done.

        Raises:
            ContractError: REPROCESS_RECORD_UNREADABLE.
        """
        return self._ends.read(self._end_key)

    def get_or_create_plan(self, plan: ReprocessPlan) -> ReprocessPlan:
        """Creates the plan unless it exists; returns the stored one.

        Raises:
            ContractError: REPROCESS_RECORD_UNREADABLE, RECORD_VANISHED.
        """
        return self._plans.get_or_create(self._plan_key, plan)

    def get_or_create_files(self, files: StagedFiles) -> StagedFiles:
        """Creates the record of staged files unless it exists; returns the stored one.

        Raises:
            ContractError: REPROCESS_RECORD_UNREADABLE, RECORD_VANISHED.
        """
        return self._files.get_or_create(self._files_key, files)

    def record_completion(self, tables: Iterable[dict[str, Any]]) -> None:
        """Records the completion. The first record wins."""
        self._ends.create(self._end_key, ReprocessCompletion(tables=tuple(tables)))


def new_reprocess_id() -> str:
    """Returns an id from the current time, to the second."""
    return utc_now().strftime("r%Y%m%d_%H%M%S")


def reprocess_id_for_run(run_id: str) -> str:
    """Returns the id for an Airflow run, the same for every try of its task."""
    return "run_" + hashlib.sha256(run_id.encode()).hexdigest()[:12]
