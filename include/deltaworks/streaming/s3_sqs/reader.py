"""The reader of `format("s3-sqs")`: plans batches of files from the state's log, and reads them in tasks.

An offset is {"seq": n, "log": id}, n the last file included and id that of the log whose number it is. Everything else
that a query needs to know is in its `stateLocation`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError
from deltaworks.sources.file_events.log import FileEventLog
from deltaworks.sources.file_events.planning import patiently, slice_limits
from deltaworks.sources.file_events.slices import SlicePlanner
from deltaworks.streaming.file_payloads import FileOpener, FileReference, resolved_variables
from deltaworks.streaming.s3_sqs.options import RELAY, S3SqsOptions
from deltaworks.streaming.s3_sqs.receiving import Receiving
from deltaworks.streaming.s3_sqs.rows import RowReader, Unread, batches_of
from deltaworks.streaming.s3_sqs.unread import UnreadTable, note_unread, query_name
from deltaworks.streaming.source_slices import balanced
from deltaworks.tables.lake import Lake


class FilesPartition(InputPartition):
    """The files of one task, with the values of the references that reach them."""

    def __init__(self, files: list[tuple[str, FileReference]], variables: dict[str, str]) -> None:
        self.files = files
        self.variables = variables


class S3SqsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in one process of the driver, reads in tasks. An exception in planning ends the query, so servers are
    waited for inside."""

    def __init__(self, options: S3SqsOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._query = query_name(schema.json(), options.source.model_dump_json())
        RowReader(schema, options.source)  # refuses what it cannot make before anything runs
        self._planning: _Planning | None = None
        self._target: int | None = None
        self._checked = False

    def __getstate__(self) -> dict[str, Any]:
        # What plans has threads and connections, and is nothing to a task.
        return self.__dict__ | {"_planning": None}

    def initialOffset(self) -> dict[str, Any]:
        return {"seq": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxFiles(self._options.source.max_files_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        planning = self._planned()
        patiently(planning.receiving.drain)
        self._target = patiently(planning.log.last_seq)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        planning = self._planned()
        self._check(start)
        if self._target is None:
            planning.receiving.keep_on()
        # Asked for the next batch, Spark is done with the one that ends here.
        patiently(lambda: planning.unread.take_in(start["seq"]))
        source = self._options.source
        limits = slice_limits(limit, max_files=source.max_files_per_batch, max_bytes=source.max_bytes_per_batch)
        end = patiently(lambda: planning.slices.end_of_next(start["seq"], limits, up_to=self._target))
        return start if end == start["seq"] else {"seq": end, "log": planning.log.table_id}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start["seq"] >= end["seq"]:
            return []
        planning = self._planned()
        self._check(end)
        rows = patiently(lambda: planning.slices.rows(start["seq"], end["seq"])).to_pylist()
        files = [(row["bucket"], FileReference(row["seq"], row["key"], row["etag"], row["version_id"])) for row in rows]
        sizes = [max(1, row["size"] or 1) for row in rows]
        variables = resolved_variables(self._options.messaging) | resolved_variables(self._options.state)
        parts = balanced(files, sizes, self._options.max_partitions) if files else []
        return [FilesPartition(part, variables) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FilesPartition)
        for name, value in partition.variables.items():
            os.environ.setdefault(name, value)
        reader, openers = RowReader(self._schema, self._options.source), dict[str, FileOpener]()
        objects = open_objects(self._options.state)
        for bucket, reference in partition.files:
            if bucket not in openers:
                openers[bucket] = self._opener(bucket)
            unread: list[Unread] = []
            yield from batches_of(reader.read(openers[bucket](reference), bucket=bucket, unread=unread))
            if unread:
                note_unread(
                    objects,
                    self._query,
                    seq=reference.seq,
                    bucket=bucket,
                    key=reference.key,
                    etag=reference.etag,
                    found=unread,
                )

    def stop(self) -> None:
        if self._planning is not None:
            self._planning.receiving.stop()

    def _check(self, position: dict[str, Any]) -> None:
        """Compare the log with the first position of a run; each run opens it anew."""
        if not self._checked:
            log = self._planned().log
            patiently(lambda: log.check(position))
            self._checked = True

    def _opener(self, bucket: str) -> FileOpener:
        source, landing = self._options.source, self._options.landing(bucket)
        return FileOpener(landing, compression=source.compression, max_object_bytes=source.max_object_bytes)

    def _planned(self) -> _Planning:
        if self._planning is None:
            self._planning = _Planning(self._options, self._query)
        return self._planning


class _Planning:
    """What the planner process holds open."""

    def __init__(self, options: S3SqsOptions, query: str) -> None:
        objects = open_objects(options.state)
        _keep_to_one_queue(options)
        self.log = FileEventLog(Lake(options.state), RELAY)
        bucket = None if options.any_bucket else options.source.bucket
        source = options.source
        self.slices = SlicePlanner(self.log, bucket=bucket, prefix=source.prefix, glob=source.glob)
        self.unread = UnreadTable(Lake(options.state), objects, query)
        self.receiving = Receiving(options)


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
