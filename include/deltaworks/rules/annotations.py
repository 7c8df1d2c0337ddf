"""Notes of what was changed: a price, a version, a campaign. Rules show what came before they fired."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterator
from typing import ClassVar

from deltaworks.control import rule_paths
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordStore
from deltaworks.errors import ContractError, DeltaworksError

#: How long before an episode a note may lie to be shown with it.
LOOKBACK_HOURS = 24
_MAX_LINES = 5


class Annotation(Record):
    """A note of a pipeline: what happened at a time, and who says so."""

    kind: ClassVar[RecordKind] = RecordKind(
        noun="annotation", unreadable_condition="ANNOTATION_UNREADABLE", hint="Delete it, and write the note again."
    )

    pipeline: str
    text: str
    at: dt.datetime
    author: str = ""

    @property
    def line(self) -> str:
        """The note on one line."""
        return f"{self.at:%Y-%m-%d %H:%M}Z {self.text}" + (f" ({self.author})" if self.author else "")


def annotate(
    objects: ObjectStore, pipeline: str, text: str, *, at: dt.datetime | None = None, author: str = ""
) -> Annotation:
    """Keep a note. The same text at the same time is one note, however often it is written.

    Raises:
        TransientError: the control area does not answer.
    """
    annotation = Annotation(
        pipeline=pipeline, text=" ".join(text.split()), at=(at or utc_now()).astimezone(dt.UTC), author=author
    )
    digest = hashlib.sha256(annotation.text.encode()).hexdigest()[:8]
    key = rule_paths.pipeline_annotations(pipeline, f"{annotation.at:%Y%m%dT%H%M%S}-{digest}.json")
    return RecordStore(objects, Annotation).get_or_create(key, annotation)


def annotations_between(
    objects: ObjectStore, pipeline: str, *, since: dt.datetime, until: dt.datetime, max_count: int | None = None
) -> list[Annotation]:
    """The notes from one time up to another, the oldest first, of more than `most` the newest. One that cannot be read
    is left out."""
    return [note for note in _read_annotations(objects, pipeline, since, until, max_count) if since <= note.at < until]


def recent_annotation_lines(objects: ObjectStore, pipeline: str, at: dt.datetime) -> list[str]:
    """The notes of the day before a time, as lines, the newest ones."""
    notes = annotations_between(
        objects, pipeline, since=at - dt.timedelta(hours=LOOKBACK_HOURS), until=at + dt.timedelta(minutes=1)
    )
    return [note.line for note in notes[-_MAX_LINES:]]


def _read_annotations(
    objects: ObjectStore, pipeline: str, since: dt.datetime, until: dt.datetime, max_count: int | None
) -> Iterator[Annotation]:
    folder = rule_paths.pipeline_annotations(pipeline)
    first, last = f"{since.astimezone(dt.UTC):%Y%m%dT%H%M%S}", f"{until.astimezone(dt.UTC):%Y%m%dT%H%M%S}~"
    keys = sorted(key for key in objects.list(folder) if first <= key.removeprefix(folder) <= last)
    for key in keys[-max_count:] if max_count else keys:
        try:
            annotation = RecordStore(objects, Annotation).read(key)
        except (ContractError, DeltaworksError):
            continue
        if annotation is not None:
            yield annotation
