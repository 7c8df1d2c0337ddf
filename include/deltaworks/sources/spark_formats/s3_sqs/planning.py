"""What a query holds open where it plans: the state's log, and how the objects named there are opened."""

from __future__ import annotations

from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError
from deltaworks.events.parse import Payload
from deltaworks.sources.objects.log import FileEventLog
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.sources.objects.slices import SlicePlanner
from deltaworks.sources.spark_formats.s3_sqs.options import RELAY, S3SqsOptions
from deltaworks.tables.lake import Lake

#: An object of a batch, in its bucket.
Located = tuple[str, FileReference]


def open_log(options: S3SqsOptions) -> tuple[FileEventLog, SlicePlanner]:
    """The log of the state, and the slices of it this query reads.

    Raises:
        ConfigError: STATE_OF_ANOTHER_QUEUE.
    """
    _keep_to_one_queue(options)
    log, source = FileEventLog(Lake(options.state), RELAY), options.source
    bucket = None if options.any_bucket else source.bucket
    return log, SlicePlanner(log, bucket=bucket, prefix=source.prefix, glob=source.glob)


def located(slices: SlicePlanner, start: int, end: int) -> list[tuple[Located, int]]:
    """The objects of a slice, each with its size."""
    return [
        ((row["bucket"], FileReference(row["seq"], row["key"], row["etag"], row["version_id"])), row["size"] or 0)
        for row in slices.rows(start, end).to_pylist()
    ]


class ObjectOpener:
    """Opens objects of any bucket the query reads. For one thread."""

    def __init__(self, options: S3SqsOptions) -> None:
        self._options = options
        self._openers: dict[str, FileOpener] = {}

    def __call__(self, where: Located) -> Payload:
        bucket, reference = where
        if bucket not in self._openers:
            source, landing = self._options.source, self._options.landing(bucket)
            self._openers[bucket] = FileOpener(
                landing, compression=source.compression, max_object_bytes=source.max_object_bytes
            )
        return self._openers[bucket](reference)


def _keep_to_one_queue(options: S3SqsOptions) -> None:
    """Refuse a state that was begun for another queue: its log would mix the files of both."""
    named = str(options.relay.queue_url).encode()
    objects = open_objects(options.state)
    if objects.put_if_absent("queue_url", named):
        return
    found = objects.get("queue_url")
    raise ConfigError(
        "STATE_OF_ANOTHER_QUEUE",
        f"{options.state.root} holds what was announced by {found.data.decode() if found else '?'}.",
        hint="Give this query a stateLocation of its own.",
    )
