"""Annotations of a pipeline, such as a release or a price change. Alerts that fire afterwards show them."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterator
from typing import ClassVar

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordStore
from deltaworks.errors import ContractError, DeltaworksError

#: Maximum age of annotations that are shown with an episode.
LOOKBACK_HOURS = 24
_MAX_LINES = 5


class Annotation(Record):
    """An annotation of a pipeline: text, time and author."""

    kind: ClassVar[RecordKind] = RecordKind(
        noun="annotation", unreadable_condition="ANNOTATION_UNREADABLE", hint="Delete it, then annotate again."
    )

    pipeline: str
    text: str
    at: dt.datetime
    author: str = ""

    @property
    def line(self) -> str:
        """The annotation as one line of text."""
        return f"{self.at:%Y-%m-%d %H:%M}Z {self.text}" + (f" ({self.author})" if self.author else "")


def annotate(
    objects: ObjectStore, pipeline: str, text: str, *, at: dt.datetime | None = None, author: str = ""
) -> Annotation:
    """Stores an annotation. Idempotent by text and time.

    Raises:
        TransientError: the control storage is unreachable.
    """
    annotation = Annotation(
        pipeline=pipeline, text=" ".join(text.split()), at=(at or utc_now()).astimezone(dt.UTC), author=author
    )
    digest = hashlib.sha256(annotation.text.encode()).hexdigest()[:8]
    key = paths.pipeline_annotations(pipeline, f"{annotation.at:%Y%m%dT%H%M%S}-{digest}.json")
    return RecordStore(objects, Annotation).get_or_create(key, annotation)


def annotations_between(
    objects: ObjectStore, pipeline: str, *, since: dt.datetime, until: dt.datetime, max_count: int | None = None
) -> list[Annotation]:
    """Returns the annotations in a time range, oldest first; with `max_count` only the newest. Unreadable ones are
    skipped.
    """
    return [note for note in _read_annotations(objects, pipeline, since, until, max_count) if since <= note.at < until]


def recent_annotation_lines(objects: ObjectStore, pipeline: str, at: dt.datetime) -> list[str]:
    """Returns the newest annotations of the day before a time, one line each."""
    notes = annotations_between(
        objects, pipeline, since=at - dt.timedelta(hours=LOOKBACK_HOURS), until=at + dt.timedelta(minutes=1)
    )
    return [note.line for note in notes[-_MAX_LINES:]]


def _read_annotations(
    objects: ObjectStore, pipeline: str, since: dt.datetime, until: dt.datetime, max_count: int | None
) -> Iterator[Annotation]:
    folder = paths.pipeline_annotations(pipeline)
    first, last = f"{since.astimezone(dt.UTC):%Y%m%dT%H%M%S}", f"{until.astimezone(dt.UTC):%Y%m%dT%H%M%S}~"
    keys = sorted(key for key in objects.list(folder) if first <= key.removeprefix(folder) <= last)
    for key in keys[-max_count:] if max_count else keys:
        try:
            annotation = RecordStore(objects, Annotation).read(key)
        except (ContractError, DeltaworksError):
            continue
        if annotation is not None:
            yield annotation
