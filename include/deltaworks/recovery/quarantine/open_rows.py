"""Reads a pipeline's quarantine: counts and lists open rows, reads the record of replays, and recounts the summary for
the console after an operation has read or removed some rows.

A row is open until a replay lands it, and again once its object was reprocessed. Replays delete nothing here: their
outcomes are in a separate append-only table. Everything is read through DuckDB in batches of rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.paths import quarantine_summary
from deltaworks.control.provenance import user_metadata
from deltaworks.control.summaries.base import log_failures, read_summary, write_summary
from deltaworks.control.summaries.quarantine import QuarantineSummary, recount
from deltaworks.events.reasons import QUARANTINE_SCHEMA
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake, duckdb_source
from deltaworks.tables.steps import REPLAYS_TABLE, last_replay

LANDED, STILL_REJECTED, REPROCESSED = "landed", "still_rejected", "reprocessed"
REPLAYS_SCHEMA = arrow_schema(
    {
        "replay_id": "string",
        "replay": "long",
        "_seq": "long",
        "_position": "long",
        "outcome": "string",
        "table_names": "array<string>",
        "at": "timestamp",
        "spec_fingerprint": "string",
    }
)

#: Columns that identify a row, and `raw_bytes`, by which a selection is split into slices.
KEY_COLUMNS = ("_seq", "_position", "_batch_id", "raw_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineFilter:
    """Conditions on quarantined rows, combined with AND. Both ends of a range are included."""

    reasons: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    from_date: dt.date | None = None
    to_date: dt.date | None = None
    from_batch: int | None = None
    to_batch: int | None = None
    fingerprint: str | None = None

    def condition(self) -> tuple[str, list[Any]]:
        """Returns the conditions as SQL over quarantined rows, with the parameters."""
        conditions: list[tuple[str, Any]] = []
        if self.reasons:
            conditions.append(
                ("list_has_any(list_transform(reasons, lambda r: r.code), ?::VARCHAR[])", list(self.reasons))
            )
        if self.events:
            conditions.append(("list_contains(?::VARCHAR[], event_name)", list(self.events)))
        for column, operator, value in (
            ("quarantine_date", ">=", self.from_date),
            ("quarantine_date", "<=", self.to_date),
            ("_batch_id", ">=", self.from_batch),
            ("_batch_id", "<=", self.to_batch),
            ("spec_fingerprint", "=", self.fingerprint),
        ):
            if value is not None:
                conditions.append((f"{column} {operator} ?", value))
        return " AND ".join(text for text, _ in conditions) or "true", [value for _, value in conditions]


class Quarantine:
    """A snapshot of a pipeline's quarantine. Create a new one to see later commits. Not thread-safe."""

    def __init__(self, lake: Lake, pipeline: str) -> None:
        self._connection = duckdb.connect(":memory:")
        self._connection.execute("SET TimeZone = 'UTC'")
        self._view(lake, "rows_", paths.table(pipeline, "quarantine"), QUARANTINE_SCHEMA)
        self._view(lake, "replays", paths.quarantine_replays(pipeline), REPLAYS_SCHEMA)
        self._connection.execute(
            "CREATE VIEW landed AS SELECT _seq, _position FROM replays AS one"
            f" WHERE outcome = '{LANDED}' AND NOT EXISTS (SELECT 1 FROM replays AS later"
            f" WHERE later.outcome = '{REPROCESSED}' AND later._seq = one._seq AND later.replay >= one.replay)"
        )
        self._connection.execute(
            "CREATE VIEW open_rows AS SELECT * FROM rows_ ANTI JOIN landed USING (_seq, _position)"
        )

    def _view(self, lake: Lake, name: str, key: str, schema: pa.Schema) -> None:
        table = lake.open(key)
        rows = schema.empty_table() if table is None else duckdb_source(lake, table)
        self._connection.register(f"{name}_delta", rows)
        self._connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {name}_delta")

    def counts(
        self, selection: QuarantineFilter, *, all_rows: bool = False, by_field: bool = False
    ) -> list[dict[str, Any]]:
        """Counts rows by date, reason, event and spec fingerprint, highest counts first. A row counts once per
        reason.

        Args:
            by_field: count also by the `path` of the reason; a row then counts once per reason and field.
        """
        condition, values = selection.condition()
        path = "coalesce(r.path, '')" if by_field else "''"
        return self._rows(
            "SELECT quarantine_date, reason.code AS code, reason.path AS path, event_name, spec_fingerprint,"
            "       count(*) AS rows FROM ("
            "  SELECT quarantine_date, event_name, spec_fingerprint,"
            f"       unnest(list_distinct(list_transform(reasons, lambda r: {{code: r.code, path: {path}}}))) AS reason"
            f" FROM {_source(all_rows)} WHERE {condition}) AS each_"
            " GROUP BY ALL ORDER BY rows DESC, quarantine_date, code, path, event_name",
            values,
        )

    def rows(self, selection: QuarantineFilter, *, limit: int, all_rows: bool = False) -> list[dict[str, Any]]:
        """Returns the newest rows, at most `limit`."""
        condition, values = selection.condition()
        return self._rows(
            f"SELECT * FROM {_source(all_rows)} WHERE {condition} ORDER BY _seq DESC, _position DESC LIMIT ?",
            [*values, limit],
        )

    def keys(self, selection: QuarantineFilter, *, limit: int | None = None) -> pa.Table:
        """Returns KEY_COLUMNS of open rows in order of arrival, at most `limit` of them."""
        condition, values = selection.condition()
        query = f"SELECT {', '.join(KEY_COLUMNS)} FROM open_rows WHERE {condition} ORDER BY _seq, _position"
        if limit is not None:
            query, values = f"{query} LIMIT ?", [*values, limit]
        return self._connection.sql(query, params=values).to_arrow_table()

    def count_replayable(self, selection: QuarantineFilter) -> tuple[int, int]:
        """Returns two numbers: the open rows, and the open rows that contain their complete event."""
        condition, values = selection.condition()
        counted = self._rows(
            "SELECT count(*) AS rows, count(*) FILTER (coalesce(raw_complete, strlen(raw) = raw_bytes)) AS whole"
            f" FROM open_rows WHERE {condition}",
            values,
        )
        return counted[0]["rows"], counted[0]["whole"]

    def last_batch(self) -> int:
        """Returns the number of the newest batch with quarantined rows, open or not; -1 if there is none."""
        return int(self._rows("SELECT coalesce(max(_batch_id), -1) AS last FROM rows_", [])[0]["last"])

    def required_objects(self) -> set[int]:
        """Returns the `_seq` of open rows that need their landed object for a replay: unreadable objects and truncated
        values.
        """
        rows = self._rows(
            "SELECT DISTINCT _seq FROM open_rows"
            " WHERE _position = -1 OR NOT coalesce(raw_complete, strlen(raw) = raw_bytes)",
            [],
        )
        return {row["_seq"] for row in rows}

    def closed_keys(self, condition: str = "true") -> set[tuple[int, int]]:
        """Returns the keys of rows that are no longer open, restricted by an SQL `condition` on `_seq`."""
        rows = self._rows(
            f"SELECT _seq, _position FROM rows_ SEMI JOIN landed USING (_seq, _position) WHERE {condition}", []
        )
        return {(row["_seq"], row["_position"]) for row in rows}

    def last_landed_tables(self) -> dict[tuple[int, int], list[str]]:
        """Returns the tables of the last replay of each row that a replay has landed, also if it is void now."""
        rows = self._rows(
            "SELECT _seq, _position, arg_max(table_names, replay) AS names FROM replays"
            f" WHERE outcome = '{LANDED}' GROUP BY _seq, _position",
            [],
        )
        return {(row["_seq"], row["_position"]): row["names"] for row in rows}

    def open_rows(self, keys: pa.Table) -> list[dict[str, Any]]:
        """Returns the complete open rows with these keys, in order of arrival."""
        if not keys.num_rows:
            return []
        seqs = keys.column("_seq").to_pylist()
        self._connection.register("selected_keys", keys.select(["_seq", "_position"]))
        try:
            return self._rows(
                "SELECT open_rows.*, coalesce(raw_complete, strlen(raw) = raw_bytes) AS is_complete,"
                " epoch_us(_ingested_at) AS ingested_at_us, epoch_us(arrived_at) AS arrived_at_us"
                " FROM open_rows SEMI JOIN selected_keys USING (_seq, _position)"
                " WHERE _seq BETWEEN ? AND ? ORDER BY _seq, _position",
                [min(seqs), max(seqs)],
            )
        finally:
            self._connection.unregister("selected_keys")

    def _rows(self, query: str, values: list[Any]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._connection.sql(query, params=values).to_arrow_table().to_pylist()
        return rows


def _source(all_rows: bool) -> str:
    return "rows_" if all_rows else "open_rows"


def split_keys(keys: pa.Table, *, max_rows: int, max_bytes: int) -> Iterator[pa.Table]:
    """Splits keys into slices of bounded size; an unreadable object forms a slice of its own."""
    start = rows = size = 0
    for index, row in enumerate(keys.select(["_position", "raw_bytes"]).to_pylist()):
        position, raw_bytes = row["_position"], row["raw_bytes"]
        whole_object = position < 0
        if rows and (whole_object or rows >= max_rows or size + (raw_bytes or 0) > max_bytes):
            yield keys.slice(start, index - start)
            start, rows, size = index, 0, 0
        rows, size = rows + 1, size + (raw_bytes or 0)
        if whole_object:
            yield keys.slice(start, 1)
            start, rows, size = index + 1, 0, 0
    if rows:
        yield keys.slice(start)


def landed_seqs(lake: Lake, pipeline: str) -> set[int]:
    """Returns the `seq` of file events of which a replay landed at least one row."""
    rows = lake.rows(paths.quarantine_replays(pipeline), columns=["_seq", "outcome"])
    return {row["_seq"] for row in rows.to_pylist() if row["outcome"] == LANDED} if rows is not None else set()


def record_reprocessed(lake: Lake, pipeline: str, seqs: Iterable[int], *, reprocess_id: str, fingerprint: str) -> None:
    """Records that all rows of these objects were replaced in the tables and in quarantine.

    Earlier replays of them are void, and quarantined rows of them are open again. Idempotent by the reprocess id. Call
    it inside `exclusive_reread`, so that no replay runs in between.
    """
    key = paths.quarantine_replays(pipeline)
    table = lake.open(key)
    landed = sorted(set(seqs) & landed_seqs(lake, pipeline))
    if table is None or not landed:
        return
    last = last_replay(table, pipeline)
    shared = {"replay_id": reprocess_id, "replay": last, "outcome": REPROCESSED, "table_names": [], "at": utc_now()}
    rows = [{**shared, "_seq": seq, "_position": None, "spec_fingerprint": fingerprint} for seq in landed]
    step = Step(f"{pipeline}/reprocess/{reprocess_id}/{REPLAYS_TABLE}", 1)
    metadata = user_metadata(
        pipeline=pipeline,
        batch=reprocess_id,
        operation="reprocess",
        step=step.app_id,
        step_version=step.version,
    )
    lake.append(table, key, pa.Table.from_pylist(rows, schema=REPLAYS_SCHEMA), step=step, user_metadata=metadata)


_MAX_ATTEMPTS = 3


def recount_quarantine(storage: StorageSpec, pipeline: str) -> None:
    """Writes the quarantine summary from the complete table. Failures are logged and not raised.

    Safe while the stream adds rows to the summary: after a concurrent write the table is counted again.
    """
    with log_failures(f"The summary of the quarantine of {pipeline}"):
        home, key = PipelineHome.open(storage, pipeline), quarantine_summary(pipeline)
        for _ in range(_MAX_ATTEMPTS):
            before, etag = read_summary(QuarantineSummary, home.objects, key)
            generation = home.generations.current()
            quarantine = Quarantine(Lake(storage), pipeline)
            last = quarantine.last_batch()
            if before is not None and before.generation == generation:
                # All rows of the batch were removed.
                last = max(last, before.through_batch)
            counts = quarantine.counts(QuarantineFilter(), by_field=True)
            summary = recount(pipeline, counts, generation=generation, through_batch=last, at=utc_now())
            if write_summary(home.objects, key, summary, etag=etag):
                return
