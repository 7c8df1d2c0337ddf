"""Specs that a stream has run with, and the rejection of edits that would damage its tables.

Every spec is stored under its fingerprint, which each batch and each quarantined row carry; one object names the last
one. An unsafe edit is rejected until a person accepts it for exactly these two specs. An edit that the existing tables
cannot follow is always rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import ValidationError

from deltaworks import __version__
from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import current_run
from deltaworks.control.records.store import Record, RecordKind, RecordStore
from deltaworks.errors import ConcurrencyError, ContractError
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.spec_change_effects import Effect
from deltaworks.specs.spec_diff import SpecChange, classify_changes, unsafe_changes

_KIND = RecordKind(
    noun="record of a declaration",
    unreadable_condition="SPEC_RECORD_UNREADABLE",
    hint="Run the release that wrote it, or move specs/current.json away to skip the comparison.",
)


class _SpecRecord(Record):
    kind: ClassVar[RecordKind] = _KIND
    indent: ClassVar[int | None] = 1


class SpecRecord(_SpecRecord):
    """A spec that a stream has started with."""

    pipeline: str
    fingerprint: str
    code_version: str
    run: str
    at: str
    spec: dict[str, Any]


class CurrentSpec(_SpecRecord):
    """The spec that the stream last started with, and its owner epoch."""

    fingerprint: str
    owner_epoch: int
    run: str
    at: str


class AcceptedChange(_SpecRecord):
    """A person's acceptance of the unsafe differences between two specs."""

    from_fingerprint: str
    to_fingerprint: str
    fields: tuple[str, ...]
    by: str
    reason: str
    at: str


class SpecRecords:
    """The spec records of one pipeline. `record_start` requires the stream's lease."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._specs = RecordStore(objects, SpecRecord)
        self._accepted = RecordStore(objects, AcceptedChange)

    def current(self) -> PipelineSpec | None:
        """Returns the spec the stream last started with; None before the first start."""
        current = RecordStore(self._objects, CurrentSpec).read(paths.current_spec(self._pipeline))
        return None if current is None else self.read(current.fingerprint)

    def read(self, fingerprint: str) -> PipelineSpec | None:
        """Returns the spec with this fingerprint; None if no stream has started with it."""
        key = paths.spec_record(self._pipeline, fingerprint)
        record = self._specs.read(key)
        return None if record is None else _parse(record.spec, key)

    def produces_same_rows(self, fingerprint: str, spec: PipelineSpec) -> bool:
        """Whether `spec` produces the same rows from the same input as the spec with this fingerprint.

        Edits of descriptions, gold and maintenance change the fingerprint but no rows.
        """
        if fingerprint == spec.fingerprint():
            return True
        started_with = self.read(fingerprint)
        return started_with is not None and all(
            change.effect is Effect.SAFE for change in classify_changes(started_with, spec)
        )

    def source_locations(self) -> set[tuple[str, str, str]]:
        """Returns relay, bucket and prefix of every spec a stream has started with; empty texts for sources without
        them.
        """
        folder = paths.specs(self._pipeline)
        locations = set()
        for key in self._objects.list(folder):
            if "/" in key.removeprefix(folder) or key == paths.current_spec(self._pipeline):
                continue
            record = self._specs.read(key)
            if record is not None:
                source = record.spec["source"]
                locations.add((source.get("relay", ""), source.get("bucket", ""), source.get("prefix", "")))
        return locations

    def changes(self, spec: PipelineSpec) -> list[SpecChange]:
        """Returns the differences between `spec` and the one the stream last started with."""
        current = self.current()
        return [] if current is None else classify_changes(current, spec)

    def check(self, spec: PipelineSpec) -> list[SpecChange]:
        """Returns the changes in `spec`.

        Raises:
            ContractError: SPEC_CHANGE_UNSAFE for an unsafe change that was not accepted.
        """
        current = self.current()
        if current is None:
            return []
        changes = classify_changes(current, spec)
        rejected = unsafe_changes(changes)
        accepted = self._objects.get(self._acceptance_key(current, spec)) is not None
        if accepted:
            rejected = [change for change in rejected if change.effect is not Effect.MIXED_ROWS]
        if rejected:
            raise ContractError(
                "SPEC_CHANGE_UNSAFE",
                _rejection_text(self._pipeline, rejected),
                hint=f"Put {', '.join(change.field for change in rejected)} back in pipeline.yaml, then "
                f"`deltaworks start {self._pipeline}`. Otherwise: {rejected[0].advice}",
            )
        return changes

    def accept(self, spec: PipelineSpec, *, by: str, reason: str) -> list[SpecChange]:
        """Allows the stream to start with `spec`; returns the accepted changes. Idempotent.

        Raises:
            ContractError: SPEC_CHANGE_UNSAFE for a change that cannot be accepted.
        """
        current = self.current()
        changes = [] if current is None else unsafe_changes(classify_changes(current, spec))
        unacceptable = [change for change in changes if change.effect is not Effect.MIXED_ROWS]
        if unacceptable:
            raise ContractError(
                "SPEC_CHANGE_UNSAFE", _rejection_text(self._pipeline, unacceptable), hint=unacceptable[0].advice
            )
        if current is not None and changes:
            accepted = AcceptedChange(
                from_fingerprint=current.fingerprint(),
                to_fingerprint=spec.fingerprint(),
                fields=tuple(change.field for change in changes),
                by=by,
                reason=reason,
                at=iso_now(),
            )
            self._accepted.create(self._acceptance_key(current, spec), accepted)
        return changes

    def save(self, spec: PipelineSpec) -> str:
        """Stores a spec under its fingerprint; returns the fingerprint. Idempotent."""
        fingerprint = spec.fingerprint()
        record = SpecRecord(
            pipeline=self._pipeline,
            fingerprint=fingerprint,
            code_version=__version__,
            run=current_run(),
            at=iso_now(),
            spec=spec.to_dict(),
        )
        self._specs.create(paths.spec_record(self._pipeline, fingerprint), record)
        return fingerprint

    def record_start(self, spec: PipelineSpec, *, owner_epoch: int) -> None:
        """Records that the stream starts with `spec`. Idempotent. Requires the lease; call it before the first batch.

        Raises:
            ConcurrencyError: SPEC_RECORD_CONTENDED if another owner recorded its spec meanwhile.
        """
        fingerprint = self.save(spec)
        key = paths.current_spec(self._pipeline)
        current = CurrentSpec(fingerprint=fingerprint, owner_epoch=owner_epoch, run=current_run(), at=iso_now())
        stored = self._objects.get(key)
        if stored is None:
            written = self._objects.put_if_absent(key, current.encode())
        elif CurrentSpec.decode(stored.data, key=key).owner_epoch > owner_epoch:
            written = False
        else:
            written = self._objects.put_if_match(key, current.encode(), stored.etag) is not None
        if not written:
            raise ConcurrencyError(
                "SPEC_RECORD_CONTENDED", f"Another owner of {self._pipeline!r} recorded its spec at the same time."
            )

    def _acceptance_key(self, old: PipelineSpec, new: PipelineSpec) -> str:
        return paths.accepted_change(self._pipeline, old.fingerprint(), new.fingerprint())


def _rejection_text(pipeline: str, changes: Sequence[SpecChange]) -> str:
    fields_text = "; ".join(f"{change.field} from {change.old!r} to {change.new!r}" for change in changes)
    return f"The stream of {pipeline!r} does not start on this edit of pipeline.yaml: {fields_text}."


def _parse(declared: dict[str, Any], key: str) -> PipelineSpec:
    """Parses a recorded spec.

    Raises:
        ContractError: SPEC_RECORD_UNREADABLE.
    """
    try:
        return PipelineSpec.model_validate(declared)
    except ValidationError as error:
        raise SpecRecord.unreadable_error(key, str(error)) from error
