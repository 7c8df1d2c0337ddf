"""Landed objects that were put anew, under their keys, without the events of people who were erased.

A replacement is the same file as what it replaces: the relay drops its announcement, a listing takes it for what was
there, and whoever reads a file event finds the object that lies in its place. So what is put is on record before it is
put, with the tag it will have. Storage that gives other tags (KMS) tells them afterwards, in a second record; until it
is there the relay leaves announcements of these keys in their queue.

Records are numbered from 1 without gaps, so that readers learn of new ones by asking for the next number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import ClassVar

from pydantic import Field

from deltaworks.control import erasure_paths
from deltaworks.control.clock import iso_now, parse_iso
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore

_KIND = RecordKind(
    noun="record of replaced objects",
    unreadable_condition="ERASURE_UNREADABLE",
    hint="Restore it from the storage's versions, or run the release that wrote it.",
)
#: A tag of an object: bucket, key and the tag itself.
_ObjectTag = tuple[str, str, str]


class ReplacedObject(RecordPart):
    """One object and what takes its place, under the same key.

    Args:
        version_id: of the object that is replaced, where the bucket keeps versions.
        new_etag: the MD5 of the new content, which is the tag it has unless the storage encrypts with keys of KMS.
        made_at: when the object, or the first of which it is a replacement, landed; ISO 8601.
        numbers: those that collectors gave to the events that went, packed.
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
    collector_numbers: dict[str, str] = Field(default_factory=dict, exclude_if=lambda value: not value)


class ReplacementPlan(Record):
    """Objects that are about to be replaced, on record before the first of them is put."""

    kind: ClassVar[RecordKind] = _KIND

    number: int
    namespace: str
    by: str
    at: str
    objects: tuple[ReplacedObject, ...]


class WrittenObject(RecordPart):
    """What lies at the key of an object of a plan; without a tag it was not put."""

    etag: str | None = None
    version_id: str | None = None


class ReplacementCompletion(Record):
    """The end of a plan, object by object in its order."""

    kind: ClassVar[RecordKind] = _KIND

    number: int
    at: str
    objects: tuple[WrittenObject, ...]


def replaced_collector_numbers_since(objects: ObjectStore, at: datetime) -> Iterator[dict[str, str]]:
    """The numbers of events that went out of landed objects, packed, of plans that were made at that time or later.

    Raises:
        ContractError: ERASURE_UNREADABLE.
    """
    plans = RecordStore(objects, ReplacementPlan)
    folder = erasure_paths.replacement(1).rpartition("/")[0] + "/"
    names = (key.removeprefix(folder).removesuffix(".json") for key in objects.list(folder))
    for number in sorted((int(name) for name in names if name.isdigit()), reverse=True):
        plan = plans.read(erasure_paths.replacement(number))
        made_at = None if plan is None else parse_iso(plan.at)
        if plan is None or (made_at is not None and made_at < at):
            return
        yield from (replaced.collector_numbers for replaced in plan.objects if replaced.collector_numbers)


class Replacements:
    """Every replacement there is. `refresh` reads what is new; used by one thread."""

    def __init__(self, objects: ObjectStore) -> None:
        self._plans = RecordStore(objects, ReplacementPlan)
        self._ends = RecordStore(objects, ReplacementCompletion)
        self._number = 0
        self._open: dict[int, ReplacementPlan] = {}
        self._before: dict[_ObjectTag, ReplacedObject] = {}
        self._after: dict[_ObjectTag, list[str]] = {}

    def refresh(self) -> Replacements:
        """Read what is new: one request where nothing is.

        Raises:
            ContractError: ERASURE_UNREADABLE.
        """
        while (plan := self._plans.read(erasure_paths.replacement(self._number + 1))) is not None:
            self._number = plan.number
            self._open[plan.number] = plan
            for replaced in plan.objects:
                self._index(replaced, replaced.new_etag)
        for plan in list(self._open.values()):
            end = self._ends.read(erasure_paths.replacement_completion(plan.number))
            if end is not None:
                self._complete_plan(plan, end)
        return self

    def original(self, bucket: str, key: str, etag: str) -> ReplacedObject | None:
        """The object as it landed, of which the one with this tag is a replacement; None for any other object."""
        first: ReplacedObject | None = None
        seen = {etag}
        while (before := self._before.get((bucket, key, etag))) is not None and before.etag not in seen:
            first, etag = before, before.etag
            seen.add(etag)
        return first

    def successors(self, bucket: str, key: str, etag: str) -> list[str]:
        """The tags under which this object may lie now, the newest first; none where it was never replaced."""
        tags: list[str] = []
        waiting = [etag]
        while waiting:
            following = self._after.get((bucket, key, waiting.pop(0)), [])
            new = [tag for tag in following if tag not in tags and tag != etag]
            tags += new
            waiting += new
        return tags[::-1]

    def may_be_replacement(self, bucket: str, key: str, etag: str) -> bool:
        """Whether an object of this key may be a replacement whose tag is not on record yet."""
        on_record = (bucket, key, etag) in self._before or (bucket, key, etag) in self._after
        return not on_record and any(
            (one.bucket, one.key) == (bucket, key) for plan in self._open.values() for one in plan.objects
        )

    def unfinished(self, namespace: str) -> list[ReplacementPlan]:
        """The plans of a namespace that have no end."""
        return [plan for plan in self._open.values() if plan.namespace == namespace]

    def create_plan(self, objects: Sequence[ReplacedObject], *, namespace: str, by: str) -> ReplacementPlan:
        """Put on record what is about to be replaced. Others may do so at the same time."""
        while True:
            self.refresh()
            plan = ReplacementPlan(
                number=self._number + 1, namespace=namespace, by=by, at=iso_now(), objects=tuple(objects)
            )
            if self._plans.create(erasure_paths.replacement(plan.number), plan):
                self.refresh()
                return plan

    def record_completion(self, plan: ReplacementPlan, objects: Sequence[WrittenObject]) -> None:
        """Note under which tags the objects of a plan lie. Idempotent: the first note stands."""
        end = ReplacementCompletion(number=plan.number, at=iso_now(), objects=tuple(objects))
        self._complete_plan(plan, self._ends.get_or_create(erasure_paths.replacement_completion(plan.number), end))

    def _complete_plan(self, plan: ReplacementPlan, end: ReplacementCompletion) -> None:
        self._open.pop(plan.number, None)
        for replaced, put in zip(plan.objects, end.objects, strict=True):
            if put.etag is not None:
                self._index(replaced, put.etag)

    def _index(self, replaced: ReplacedObject, etag: str) -> None:
        if etag == replaced.etag:
            return
        after = self._after.setdefault((replaced.bucket, replaced.key, replaced.etag), [])
        if etag not in after:
            after.append(etag)
        self._before[(replaced.bucket, replaced.key, etag)] = replaced
