"""Records which landed objects were rewritten in place, under the same key, to remove events of erased people.

A rewritten object counts as the same file as the original: the relay drops its notification, a listing does not report
it as new, and readers of the original's file event read it. So each rewrite is recorded, with its future ETag, before
the object is written. Storage that assigns other ETags (KMS) reports them afterwards, in a second record. Until then
the relay leaves notifications of these keys in the queue.

Records are numbered from 1 without gaps, so readers find new ones by reading the next number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import ClassVar

from pydantic import Field

from deltaworks.control import paths
from deltaworks.control.clock import iso_now, parse_iso
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore

_KIND = RecordKind(
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

    kind: ClassVar[RecordKind] = _KIND

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

    kind: ClassVar[RecordKind] = _KIND

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
