"""What a reprocess is, in three objects that are created once: its plan, the files it wrote, and its end.

Whoever continues after a crash reads them and does what is missing: with a plan alone the objects are read again, with
the files they are committed, with the end nothing is left to do.
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
#: What lies beside the plans: the lease of whoever reads landed rows again.
LEASE_NAME: Final = "lease.json"


class ReprocessPlan(Record):
    """What is read again and where its rows go. `ranges` are of `seq`, both ends included; `objects` counts objects, of
    a stream the batches that read its records.

    `whole` says that all tables and quarantine are recreated; else only `tables` get rows, and quarantine loses those
    that landed in them.
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
    """The new rows of one table, in files of the staging folder, and the seqs whose old rows they replace."""

    table: str
    rows: int
    files: tuple[str, ...]
    ranges: tuple[tuple[int, int], ...]


class StagedFiles(Record):
    """What the pass over objects or records wrote.

    `gone` are keys of objects, or names of ranges of records, that could not be read: their rows stay. `origins` counts
    the ranges that came from the `source` and from the `archive`. `unmatched` are events without a place in the
    tables that were asked for; `still_quarantined` are rows there that would also land in tables not asked for.
    """

    kind: ClassVar[RecordKind] = _KIND

    tables: tuple[StagedTable, ...]
    missing: tuple[str, ...]
    unmatched_events: int
    still_quarantined: int
    origins: dict[str, int] = Field(default_factory=dict, exclude_if=lambda origins: not origins)


class ReprocessCompletion(Record):
    """The end of a reprocess: what became of each table, as `TableReprocess` mappings."""

    model_config = ConfigDict(extra="ignore")
    kind: ClassVar[RecordKind] = _KIND

    tables: tuple[dict[str, Any], ...]


def reprocess_ids(objects: ObjectStore, pipeline: str) -> list[str]:
    """The reprocesses of a pipeline that have a plan, ended ones too."""
    folder = paths.reprocess(pipeline, "") + "/"
    names = (key.removeprefix(folder) for key in objects.list(folder))
    return sorted(name.removesuffix(".json") for name in names if "/" not in name and name != LEASE_NAME)


class ReprocessRecords:
    """The three objects of one reprocess."""

    def __init__(self, objects: ObjectStore, pipeline: str, reprocess_id: str) -> None:
        if not _ID.fullmatch(reprocess_id) or f"{reprocess_id}.json" == LEASE_NAME:
            raise ConfigError(
                "REPROCESS_ID_INVALID",
                f"{reprocess_id!r} cannot name a reprocess.",
                hint="Use at most 40 lower-case letters, digits and underscores, and not the word lease.",
            )
        self.id = reprocess_id
        self._plan_key = paths.reprocess(pipeline, f"{reprocess_id}.json")
        self._files_key = paths.reprocess(pipeline, f"{reprocess_id}/files.json")
        self._end_key = paths.reprocess(pipeline, f"{reprocess_id}/done.json")
        self._plans = RecordStore(objects, ReprocessPlan)
        self._files = RecordStore(objects, StagedFiles)
        self._ends = RecordStore(objects, ReprocessCompletion)

    def plan(self) -> ReprocessPlan | None:
        """The plan, None before there is one.

        Raises:
            ContractError: REPROCESS_RECORD_UNREADABLE.
        """
        return self._plans.read(self._plan_key)

    def files(self) -> StagedFiles | None:
        """What the pass wrote, None before it has ended.

        Raises:
            ContractError: REPROCESS_RECORD_UNREADABLE.
        """
        return self._files.read(self._files_key)

    def completion(self) -> ReprocessCompletion | None:
        """What became of each table, None before all are done.

        Raises:
            ContractError: REPROCESS_RECORD_UNREADABLE.
        """
        return self._ends.read(self._end_key)

    def get_or_create_plan(self, plan: ReprocessPlan) -> ReprocessPlan:
        """Create the plan; returns the one that stands, which is another process's where that one was first.

        Raises:
            ContractError: REPROCESS_RECORD_UNREADABLE, RECORD_VANISHED.
        """
        return self._plans.get_or_create(self._plan_key, plan)

    def get_or_create_files(self, files: StagedFiles) -> StagedFiles:
        """Create the record of files; returns the one that stands.

        Raises:
            ContractError: REPROCESS_RECORD_UNREADABLE, RECORD_VANISHED.
        """
        return self._files.get_or_create(self._files_key, files)

    def record_completion(self, tables: Iterable[dict[str, Any]]) -> None:
        """Note that all is done. The first note stays."""
        self._ends.create(self._end_key, ReprocessCompletion(tables=tuple(tables)))


def new_reprocess_id() -> str:
    """An id from the clock, to the second."""
    return utc_now().strftime("r%Y%m%d_%H%M%S")


def reprocess_id_for_run(run_id: str) -> str:
    """The id of what one Airflow run does, the same for every try of its task."""
    return "run_" + hashlib.sha256(run_id.encode()).hexdigest()[:12]
