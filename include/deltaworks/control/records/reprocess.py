"""Records of input that is read again: reprocesses, and landed objects that were rewritten without erased events.

A reprocess has three objects, each created once: its plan, its staged files and its completion. After a crash the next
run does what is missing: with only a plan it re-reads the input, with staged files it commits them, with a completion
there is nothing to do.

A landed object that was rewritten in place, under the same key, counts as the same file as the original: the relay
drops its notification, a listing does not report it as new, and readers of the original's file event read it. So each
rewrite is recorded, with its future ETag, before the object is written. Storage that assigns other ETags (KMS) reports
them afterwards, in a second record. Until then the relay leaves notifications of these keys in the queue. Records of
rewrites are numbered from 1 without gaps, so readers find new ones by reading the next number.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from deltaworks.control import paths
from deltaworks.control.clock import iso_now, parse_iso, utc_now
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


# Landed objects that were rewritten.

_REPLACEMENT_KIND = RecordKind(
    noun="record of replaced objects",
    unreadable_condition="ERASURE_UNREADABLE",
    hint="Restore it from the storage's versions, or run the release that wrote it.",
)
#: Bucket, key and ETag of an object version.
_ObjectTag = tuple[str, str, str]


class ReplacedObject(RecordPart):
    """A landed object and its rewritten version, under the same key.

    Args:
        version_id: version of the original, if the bucket is versioned.
        new_etag: MD5 of the new content, which is its ETag unless the storage encrypts with KMS keys.
        landed_at: when the original object landed; ISO 8601.
        collector_numbers: collector sequence numbers of the removed events, packed.
    """

    bucket: str
    key: str
    etag: str
    version_id: str | None
    new_etag: str
    bytes_before: int
    bytes_after: int
    events: int
    landed_at: str
    collector_numbers: dict[str, str] = Field(default_factory=dict)


class ReplacementPlan(Record):
    """Objects to rewrite, recorded before the first of them is written."""

    kind: ClassVar[RecordKind] = _REPLACEMENT_KIND

    number: int
    namespace: str
    by: str
    at: str
    objects: tuple[ReplacedObject, ...]


class WrittenObject(RecordPart):
    """The object written at a planned key; without an ETag it was not written."""

    etag: str | None = None
    version_id: str | None = None


class ReplacementCompletion(Record):
    """The completion of a plan, with one entry per object in its order."""

    kind: ClassVar[RecordKind] = _REPLACEMENT_KIND

    number: int
    at: str
    objects: tuple[WrittenObject, ...]


def replaced_collector_numbers_since(objects: ObjectStore, at: datetime) -> Iterator[dict[str, str]]:
    """Yields the packed collector numbers of events removed by plans made at or after the given time.

    Raises:
        ContractError: ERASURE_UNREADABLE.
    """
    plans = RecordStore(objects, ReplacementPlan)
    folder = paths.landing_replacement(1).rpartition("/")[0] + "/"
    names = (key.removeprefix(folder).removesuffix(".json") for key in objects.list(folder))
    for number in sorted((int(name) for name in names if name.isdigit()), reverse=True):
        plan = plans.read(paths.landing_replacement(number))
        made_at = None if plan is None else parse_iso(plan.at)
        if plan is None or (made_at is not None and made_at < at):
            return
        yield from (replaced.collector_numbers for replaced in plan.objects if replaced.collector_numbers)


class Replacements:
    """An index of all rewrites. `refresh` reads new records. Single-threaded."""

    def __init__(self, objects: ObjectStore) -> None:
        self._plans = RecordStore(objects, ReplacementPlan)
        self._ends = RecordStore(objects, ReplacementCompletion)
        self._number = 0
        self._open: dict[int, ReplacementPlan] = {}
        self._originals: dict[_ObjectTag, ReplacedObject] = {}
        self._successor_etags: dict[_ObjectTag, list[str]] = {}

    def refresh(self) -> Replacements:
        """Reads new records: one request if there are none.

        Raises:
            ContractError: ERASURE_UNREADABLE.
        """
        while (plan := self._plans.read(paths.landing_replacement(self._number + 1))) is not None:
            self._number = plan.number
            self._open[plan.number] = plan
            for replaced in plan.objects:
                self._index(replaced, replaced.new_etag)
        for plan in list(self._open.values()):
            end = self._ends.read(paths.landing_replacement_completion(plan.number))
            if end is not None:
                self._complete_plan(plan, end)
        return self

    def original(self, bucket: str, key: str, etag: str) -> ReplacedObject | None:
        """Returns the original object, given the ETag of a rewritten version; None for other objects."""
        first: ReplacedObject | None = None
        visited = {etag}
        while (previous := self._originals.get((bucket, key, etag))) is not None and previous.etag not in visited:
            first, etag = previous, previous.etag
            visited.add(etag)
        return first

    def successors(self, bucket: str, key: str, etag: str) -> list[str]:
        """Returns the ETags of rewritten versions of this object, newest first."""
        tags: list[str] = []
        waiting = [etag]
        while waiting:
            next_etags = self._successor_etags.get((bucket, key, waiting.pop(0)), [])
            new = [tag for tag in next_etags if tag not in tags and tag != etag]
            tags += new
            waiting += new
        return tags[::-1]

    def may_be_replacement(self, bucket: str, key: str, etag: str) -> bool:
        """Whether an object of this key may be a rewritten version whose ETag is not recorded yet."""
        is_recorded = (bucket, key, etag) in self._originals or (bucket, key, etag) in self._successor_etags
        return not is_recorded and any(
            (one.bucket, one.key) == (bucket, key) for plan in self._open.values() for one in plan.objects
        )

    def unfinished(self, namespace: str) -> list[ReplacementPlan]:
        """Returns the incomplete plans of a namespace."""
        return [plan for plan in self._open.values() if plan.namespace == namespace]

    def create_plan(self, objects: Sequence[ReplacedObject], *, namespace: str, by: str) -> ReplacementPlan:
        """Records a plan under the next free number. Safe for concurrent use."""
        while True:
            self.refresh()
            plan = ReplacementPlan(
                number=self._number + 1, namespace=namespace, by=by, at=iso_now(), objects=tuple(objects)
            )
            if self._plans.create(paths.landing_replacement(plan.number), plan):
                self.refresh()
                return plan

    def record_completion(self, plan: ReplacementPlan, objects: Sequence[WrittenObject]) -> None:
        """Records the ETags of a plan's objects. Idempotent: the first record wins."""
        end = ReplacementCompletion(number=plan.number, at=iso_now(), objects=tuple(objects))
        self._complete_plan(plan, self._ends.get_or_create(paths.landing_replacement_completion(plan.number), end))

    def _complete_plan(self, plan: ReplacementPlan, end: ReplacementCompletion) -> None:
        self._open.pop(plan.number, None)
        for replaced, put in zip(plan.objects, end.objects, strict=True):
            if put.etag is not None:
                self._index(replaced, put.etag)

    def _index(self, replaced: ReplacedObject, etag: str) -> None:
        if etag == replaced.etag:
            return
        etags = self._successor_etags.setdefault((replaced.bucket, replaced.key, replaced.etag), [])
        if etag not in etags:
            etags.append(etag)
        self._originals[(replaced.bucket, replaced.key, etag)] = replaced
