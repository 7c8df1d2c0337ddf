"""Choice of a table's writer: delta-rs if it supports the table's features, otherwise Spark."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.engine.table_set import TableSet
from deltaworks.engine.writers import SparkWriter, staging_key
from deltaworks.errors import FencedError
from deltaworks.tables.commit import Step
from deltaworks.tables.files import WrittenFile
from deltaworks.testing import present
from tests.crashes import Crash, crash_at
from tests.spark.engine.conftest import DECLARED, Shop, SliceReadHere
from tests.waiting import PATIENCE_SECONDS

PROPERTIES = "ALTER TABLE {table} SET TBLPROPERTIES ({properties})"
ENVELOPE = (
    "event_id STRING, event_name STRING, event_time TIMESTAMP, event_date DATE, _ingested_at TIMESTAMP, "
    "_batch_id BIGINT, _seq BIGINT, _position BIGINT"
)
#: What is done to the table, and what the reason names.
ALTERED = {
    "check constraint": ("ALTER TABLE {table} ADD CONSTRAINT named CHECK (event_name <> 'never')", "constraint"),
    "default": (
        "ALTER TABLE {table} SET TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported');"
        "ALTER TABLE {table} ALTER COLUMN event_name SET DEFAULT 'none'",
        "default",
    ),
    "column mapping": (PROPERTIES.replace("{properties}", "'delta.columnMapping.mode' = 'name'"), "column mapping"),
    "row tracking": (PROPERTIES.replace("{properties}", "'delta.enableRowTracking' = 'true'"), "rowTracking"),
    "in-commit timestamps": (
        PROPERTIES.replace("{properties}", "'delta.enableInCommitTimestamps' = 'true'"),
        "inCommitTimestamp",
    ),
    "type widening": (PROPERTIES.replace("{properties}", "'delta.enableTypeWidening' = 'true'"), "typeWidening"),
}
CREATED = {
    "not null": (
        f"CREATE TABLE {{table}} ({ENVELOPE.replace('event_name STRING', 'event_name STRING NOT NULL')}) "
        "USING delta PARTITIONED BY (event_date)",
        "NOT NULL of event_name",
    ),
    "generated column": (
        f"CREATE TABLE {{table}} ({ENVELOPE}, event_day DATE GENERATED ALWAYS AS (CAST(event_time AS DATE))) "
        "USING delta PARTITIONED BY (event_date)",
        "generated",
    ),
    "identity column": (
        f"CREATE TABLE {{table}} ({ENVELOPE}, row_id BIGINT GENERATED ALWAYS AS IDENTITY) "
        "USING delta PARTITIONED BY (event_date)",
        "identity",
    ),
}
SUPPORTED = {
    "change feed": "'delta.enableChangeDataFeed' = 'true'",
    "deletion vectors": "'delta.enableDeletionVectors' = 'true'",
    "append only": "'delta.appendOnly' = 'true'",
}


@pytest.fixture
def events_shop(make_shop: Callable[..., Shop]) -> Shop:
    """A shop with one altered table and one unchanged table, whose objects are read in this process."""
    shop = make_shop(tables=[DECLARED["tables"][0], DECLARED["tables"][3]])
    shop.slice_type = SliceReadHere
    return shop


def address(shop: Shop, table: str = "events") -> str:
    return f"delta.`{shop.environment.lake.spark_uri(paths.table('shop', table))}`"


def run(shop: Shop, statements: str) -> None:
    for statement in statements.format(table=address(shop)).split(";"):
        shop.spark.sql(statement)


def landed_in_events(shop: Shop) -> list[tuple[int, int]]:
    return sorted(tuple(row) for row in shop.spark.sql(f"SELECT _seq, _position FROM {address(shop)}").collect())


def expected_in_events(shop: Shop, *seqs: int) -> list[tuple[int, int]]:
    return sorted((seq, position) for name, seq, position in shop.expected(*seqs).elements() if name == "events")


def writers_of(shop: Shop) -> set[str]:
    return {row["writer"] for row in shop.ledger("batch_metadata_store") if row["table_name"] == "events"}


@pytest.mark.parametrize("feature", ALTERED)
def test_a_table_with_features_unsupported_by_delta_rs_is_written_by_spark(events_shop: Shop, feature: str) -> None:
    statements, reason = ALTERED[feature]
    events_shop.processor()
    run(events_shop, statements)

    events_shop.processor().process(events_shop.land_files(1), 0)

    assert landed_in_events(events_shop) == expected_in_events(events_shop, 1)
    assert writers_of(events_shop) == {"spark"}
    assert reason in _reasons(events_shop)


@pytest.mark.parametrize("feature", CREATED)
def test_columns_that_spark_fills_or_checks_are_filled_and_checked(events_shop: Shop, feature: str) -> None:
    statement, reason = CREATED[feature]
    run(events_shop, statement)

    events_shop.processor().process(events_shop.land_files(1), 0)

    assert landed_in_events(events_shop) == expected_in_events(events_shop, 1)
    assert writers_of(events_shop) == {"spark"}
    assert reason in _reasons(events_shop)
    column = {"generated column": "event_day", "identity column": "row_id"}.get(feature, "event_name")
    assert events_shop.spark.sql(f"SELECT count(*) FROM {address(events_shop)} WHERE {column} IS NULL").first()[0] == 0


def test_a_clustered_table_is_written_by_spark(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(tables=[{**DECLARED["tables"][0], "partition_by": []}])
    run(shop, f"CREATE TABLE {{table}} ({ENVELOPE}) USING delta CLUSTER BY (event_name)")

    shop.processor().process(shop.land_files(1), 0)

    assert landed_in_events(shop) == expected_in_events(shop, 1)
    assert writers_of(shop) == {"spark"}


def _reasons(shop: Shop) -> str:
    from deltaworks.tables.features import reasons_to_use_spark

    table = present(shop.lake.open(paths.table("shop", "events")))
    return ", ".join(reasons_to_use_spark(table))


@pytest.mark.parametrize("feature", SUPPORTED)
def test_features_safe_for_appends_stay_with_delta_rs(events_shop: Shop, feature: str) -> None:
    events_shop.processor()
    run(events_shop, PROPERTIES.replace("{properties}", SUPPORTED[feature]))

    events_shop.processor().process(events_shop.land_files(1), 0)

    assert landed_in_events(events_shop) == expected_in_events(events_shop, 1)
    assert writers_of(events_shop) == {"fan_out"}


def test_rows_that_violate_a_constraint_suspend_only_their_table(events_shop: Shop) -> None:
    events_shop.processor()
    run(events_shop, "ALTER TABLE {table} ADD CONSTRAINT no_login CHECK (event_name <> 'login')")

    processor = events_shop.processor()
    processor.process(events_shop.land_files(1), 0)

    assert landed_in_events(events_shop) == []
    assert events_shop.table("logins").num_rows == 4
    (held,) = processor.held
    assert (held.table, held.condition, held.retryable) == ("events", "ROWS_REFUSED", False)
    assert "no_login" in held.message.lower()

    run(events_shop, "ALTER TABLE {table} DROP CONSTRAINT no_login")
    PipelineHome(events_shop.objects, "shop").held.request_resume("events", by="ada")
    events_shop.processor()
    assert landed_in_events(events_shop) == expected_in_events(events_shop, 1)


def test_files_written_for_delta_rs_are_committed_by_spark_after_a_table_change(events_shop: Shop) -> None:
    with pytest.raises(Crash):
        events_shop.processor(fault=crash_at("prepared")).process(events_shop.land_files(1), 0)
    run(events_shop, ALTERED["check constraint"][0])

    events_shop.processor().complete_prepared()

    assert landed_in_events(events_shop) == expected_in_events(events_shop, 1)
    dates = events_shop.spark.sql(
        f"SELECT count(*) FROM {address(events_shop)} WHERE event_date = to_date(event_time)"
    ).first()
    assert dates[0] == len(expected_in_events(events_shop, 1))


def test_spark_adds_columns_to_tables_it_writes(make_shop: Callable[..., Shop]) -> None:
    plain = {**DECLARED["tables"][0], "writer": "spark"}
    shop = make_shop(tables=[plain])
    shop.processor()
    run(shop, ALTERED["type widening"][0])
    kinds = ["decimal(12,2)", "array<struct<a: string, b: map<string,long>>>", "struct<x: timestamp>"]
    columns = [{"name": f"c{at}", "path": f"c{at}", "type": kind} for at, kind in enumerate(kinds)]

    shop = make_shop(tables=[{**plain, "columns": columns}])
    shop.epoch = 1
    processor = shop.processor()
    processor.process(shop.land_files(1), 0)

    assert processor.held == []
    assert landed_in_events(shop) == expected_in_events(shop, 1)


class TestPausedBetweenCheckAndAppend:
    """A former owner of a Spark-written table resumes after its successor has committed the batch."""

    @pytest.mark.parametrize("protected", [True, False])
    def test_its_append_adds_nothing_because_of_the_transaction(
        self, make_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch, protected: bool
    ) -> None:
        shop = make_shop(tables=[{**DECLARED["tables"][0], "writer": "spark"}])
        former = shop.processor()
        source = shop.land_files(1)
        paused, go_on = threading.Event(), threading.Event()
        append = SparkWriter._append if protected else _append_without_transaction

        def late(self: SparkWriter, *arguments: Any) -> None:
            if threading.current_thread().name.startswith("ThreadPool") and not paused.is_set():
                paused.set()
                go_on.wait(PATIENCE_SECONDS)
            append(self, *arguments)

        monkeypatch.setattr(SparkWriter, "_append", late)
        caught: list[BaseException] = []

        def run_former() -> None:
            try:
                former.process(source, 0)
            except BaseException as error:
                caught.append(error)

        thread = threading.Thread(target=run_former)
        thread.start()
        assert paused.wait(PATIENCE_SECONDS)
        # Kept aside: the successor removes what it has landed, and a former owner may still be reading.
        staged = shop.root / "lake" / staging_key("shop", "events")
        aside = shop.root / "staged"
        shutil.copytree(staged, aside)
        shop.processor().complete_prepared()
        shutil.copytree(aside, staged, dirs_exist_ok=True)
        go_on.set()
        thread.join()

        doubled = len(landed_in_events(shop)) - len(expected_in_events(shop, 1))
        assert (doubled == 0) is protected
        assert all(isinstance(error, FencedError) for error in caught)


def _append_without_transaction(
    self: SparkWriter, batch: PreparedBatch, share: PreparedTable, files: list[WrittenFile], step: Step
) -> None:
    target = self._lake.storage.spark_uri(paths.table(batch.pipeline, share.table))
    self._read_frame(batch.pipeline, share, files).write.format("delta").mode("append").save(target)


def test_the_declared_writer_is_used_for_tables_without_features(events_shop: Shop) -> None:
    tables = TableSet(events_shop.lake, events_shop.spec, spark=events_shop.spark)

    tables.open()

    assert set(tables.writer_by_table.values()) == {"fan_out"}
