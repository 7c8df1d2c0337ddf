"""Batches are committed to all tables exactly once, wherever the process ends and whoever continues."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.generations import Generations
from deltaworks.engine.ledger import owner_step
from deltaworks.engine.writers import staging_key
from deltaworks.errors import FencedError, TransientError
from deltaworks.sources.base import ObjectSlice
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.log import commit_history
from deltaworks.tables.query import connect
from deltaworks.testing import present
from tests.crashes import Crash, crash_at
from tests.spark.engine.conftest import DECLARED, Shop, SliceReadHere, shop_at

FAULTS = ["files_written", "prepared", "committed:events", "committed:orders", "committed:quarantine"]
FAULTS += ["committed", "completed"]


@pytest.fixture
def shop(make_shop: Callable[..., Shop]) -> Shop:
    """A shop without a table that Spark writes, whose objects are read in this process."""
    shop = make_shop(tables=[table for table in DECLARED["tables"] if table.get("writer") != "spark"])
    shop.slice_type = SliceReadHere
    return shop


@pytest.fixture
def full_shop(make_shop: Callable[..., Shop]) -> Shop:
    """A shop with a table that Spark writes, whose objects are read in Spark's tasks."""
    return make_shop()


@pytest.fixture(scope="module")
def landed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A full shop with a batch of two objects, to be read."""
    shop = shop_at(spark, tmp_path_factory.mktemp("landed"))
    shop.processor().process(shop.land_files(1, 2), 0)
    return shop


def test_a_batch_is_committed_to_all_tables_and_the_ledger(full_shop: Shop) -> None:
    shop = full_shop
    source = shop.land_files(1, 2, 3)
    processor = shop.processor()
    shop.keep_checkpoint(0, 3)

    report = processor.process(source, 0)

    expected = shop.expected(1, 2, 3)
    assert shop.landed() == expected
    assert {name for name, _, _ in expected} == {"events", "orders", "orders_by_spark", "logins", "quarantine"}
    assert report is not None
    assert (report.batch_id, report.files_read, report.resumed) == (0, 3, False)
    assert report.quarantined == sum(name == "quarantine" for name, _, _ in expected) == 9
    assert report.rows == len(expected) - 9
    (row,) = shop.ledger("checkpoint_store")
    assert (row["rows"], row["quarantined"]) == (report.rows, 9)
    assert (row["start_offset"], row["end_offset"], row["job_state"]) == ("null", '{"seq": 3}', "complete")
    assert json.loads(row["source_metadata"])["files"] == 3


def test_the_ledger_has_the_version_of_each_step(full_shop: Shop) -> None:
    shop = full_shop
    processor = shop.processor()
    for batch in range(2):
        processor.process(shop.land_files(batch + 1), batch)

    steps = shop.ledger("batch_metadata_store")

    assert len(steps) == 2 * 5
    for step in steps:
        assert step["outcome"] == "committed"
        key = paths.table("shop", step["table_name"])
        uri = shop.environment.lake.uri(key)
        before = DeltaTable(uri, version=step["delta_version"] - 1).to_pyarrow_table()
        after = DeltaTable(uri, version=step["delta_version"]).to_pyarrow_table()
        assert after.num_rows - before.num_rows == step["rows"] > 0
        (commit,) = commit_history(shop.lake, key, newest=step["delta_version"], limit=1)
        said = commit.metadata
        assert (said["batch"], said["operation"], said["step"]) == (str(step["batch_id"]), "append", step["step"])


def test_rows_are_stamped_with_their_batch(shop: Shop) -> None:
    processor = shop.processor()
    for batch in range(2):
        processor.process(shop.land_files(batch + 1), batch)

    stamps = {(row["_batch_id"], row["_seq"]) for row in shop.table("orders").to_pylist()}

    assert stamps == {(0, 1), (1, 2)}


@pytest.mark.parametrize("point", FAULTS)
def test_an_interrupted_batch_is_completed_exactly_once(shop: Shop, point: str) -> None:
    interrupt(shop, point)


def test_a_batch_interrupted_after_a_commit_of_spark_is_completed_exactly_once(full_shop: Shop) -> None:
    interrupt(full_shop, "committed:orders_by_spark")


def interrupt(shop: Shop, point: str) -> None:
    """Ends the owner of a batch at this point, and checks what its successor lands."""
    source = shop.land_files(1, 2)
    with pytest.raises(Crash):
        shop.processor(fault=crash_at(point)).process(source, 0)

    successor = shop.processor()
    finished = successor.complete_prepared()
    repeated = successor.process(source, 0)
    following = successor.process(shop.land_files(3), 1)

    assert shop.landed() == shop.expected(1, 2, 3)
    assert (finished is not None) == (point not in ("files_written", "completed"))
    assert (repeated is not None) == (point == "files_written")
    assert following is not None
    assert following.batch_id == 1
    assert [row["batch_id"] for row in shop.ledger("checkpoint_store")] == [0, 1]
    assert len(shop.ledger("batch_metadata_store")) == 2 * (len(shop.spec.tables) + 1)


@pytest.mark.parametrize("point", ["prepared", "committed:orders"])
def test_the_same_owner_may_retry_an_interrupted_batch(shop: Shop, point: str) -> None:
    source = shop.land_files(1)
    with pytest.raises(Crash):
        shop.processor(fault=crash_at(point)).process(source, 0)

    report = shop.processor(takeover=False).process(source, 0)

    assert report is not None
    assert report.resumed
    assert shop.landed() == shop.expected(1)


def test_a_prepared_batch_is_committed_even_if_the_source_has_changed(shop: Shop) -> None:
    with pytest.raises(Crash):
        shop.processor(fault=crash_at("prepared")).process(shop.land_files(1, 2), 0)

    shop.processor().process(shop.land_files(7), 0)

    assert shop.landed() == shop.expected(1, 2)


def test_a_batch_that_is_complete_is_skipped(shop: Shop) -> None:
    source = shop.land_files(1)
    processor = shop.processor()
    processor.process(source, 0)

    assert processor.process(source, 0) is None
    assert shop.processor().process(source, 0) is None
    assert shop.landed() == shop.expected(1)


def test_a_batch_without_files_is_recorded_and_writes_nothing(shop: Shop) -> None:
    report = shop.processor().process(ObjectSlice([], [], {"files": 0, "bytes": 0}, shop.opener()), 0)

    assert report is not None
    assert (report.rows, report.tables) == (0, 0)
    assert [row["batch_id"] for row in shop.ledger("checkpoint_store")] == [0]
    assert not shop.landed()


class TestOwners:
    """A former owner that resumes writes nothing."""

    def test_a_fenced_owner_commits_no_row(self, shop: Shop) -> None:
        former = shop.processor()
        shop.processor()

        with pytest.raises(FencedError):
            former.process(shop.land_files(1), 0)

        assert not shop.landed()
        assert not shop.ledger("checkpoint_store")

    def test_an_owner_fenced_before_its_commits_leaves_them_to_its_successor(self, shop: Shop) -> None:
        source = shop.land_files(1)
        successors = []

        def overtake(point: str) -> None:
            if point == "prepared":
                successors.append(shop.processor())
                assert successors[0].complete_prepared() is not None

        with pytest.raises(FencedError):
            shop.processor(fault=overtake).process(source, 0)

        assert shop.landed() == shop.expected(1)
        assert [row["owner_epoch"] for row in shop.ledger("checkpoint_store")] == [2]

    def test_every_table_but_those_of_spark_carries_the_epoch_of_its_owner(self, full_shop: Shop) -> None:
        shop = full_shop
        shop.processor()
        shop.processor()

        for name in ("events", "orders", "logins", "quarantine"):
            table = DeltaTable(shop.environment.lake.uri(paths.table("shop", name)))
            assert table.transaction_version(owner_step("shop", 0).app_id) == 2


class TestLostCheckpoints:
    """If Spark's checkpoint is lost, batch ids and offsets continue after the ledger's last batch."""

    def test_a_lost_checkpoint_continues_batch_ids_and_offsets(self, shop: Shop) -> None:
        processor = shop.processor()
        for batch in range(2):
            shop.keep_checkpoint(batch, batch + 1)
            processor.process(shop.land_files(batch + 1), batch)
        shop.objects.delete(f"{paths.checkpoint('shop', 1, 1)}/metadata")

        successor = shop.processor()
        generations = shop.generations()
        shop.keep_checkpoint(0, 3)
        report = successor.process(shop.land_files(3), 0)

        assert generations.current.start == {"seq": 2}
        assert report is not None
        assert report.batch_id == 2
        assert shop.landed() == shop.expected(1, 2, 3)
        last = shop.ledger("checkpoint_store")[-1]
        assert (last["batch_id"], last["spark_batch_id"], last["checkpoint"]) == (2, 0, 2)
        assert (last["start_offset"], last["end_offset"]) == ('{"seq": 2}', '{"seq": 3}')

    def test_a_prepared_batch_of_a_lost_checkpoint_is_completed_first_under_its_old_id(self, shop: Shop) -> None:
        processor = shop.processor()
        shop.keep_checkpoint(0, 1)
        processor.process(shop.land_files(1), 0)
        shop.keep_checkpoint(1, 2)
        with pytest.raises(Crash):
            shop.processor(fault=crash_at("committed:orders")).process(shop.land_files(2), 1)
        shop.objects.delete(f"{paths.checkpoint('shop', 1, 1)}/metadata")

        successor = shop.processor(generations=Generations.first())
        torn = successor.complete_prepared()
        generations = shop.generations()
        successor.use_checkpoint(generations)
        report = successor.process(shop.land_files(3), 0)

        assert torn is not None
        assert torn.batch_id == 1
        assert generations.current.start == {"seq": 2}
        assert report is not None
        assert report.batch_id == 2
        assert shop.landed() == shop.expected(1, 2, 3)

    def test_a_batch_prepared_under_a_replaced_checkpoint_loses_nothing_of_the_new_slice(self, shop: Shop) -> None:
        shop.keep_checkpoint(0, 1)
        shop.processor().process(shop.land_files(1), 0)
        shop.keep_checkpoint(1, 2)
        paused = shop.processor(fault=crash_at("prepared"))
        shop.objects.delete(f"{paths.checkpoint('shop', 1, 1)}/metadata")
        successor = shop.processor()
        shop.keep_checkpoint(0, 3)
        with pytest.raises(Crash):
            paused.process(shop.land_files(2), 1)

        with pytest.raises(TransientError, match="CHECKPOINT_SUPERSEDED"):
            successor.process(shop.land_files(2, 3), 0)
        following = shop.generations()
        third = shop.processor()
        shop.keep_checkpoint(0, 3)
        third.process(shop.land_files(3), 0)

        assert following.current.start == {"seq": 2}
        assert shop.landed() == shop.expected(1, 2, 3)


def plain(value: Any) -> Any:
    """Values in a common form for every reader's Arrow table."""
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def rows(table: pa.Table, columns: list[str]) -> list[dict[str, Any]]:
    found = [plain(row) for row in table.select(columns).to_pylist()]
    return sorted(found, key=lambda row: (row["_seq"], row["_position"]))


@pytest.mark.parametrize("name", ["events", "orders", "orders_by_spark", "logins", "quarantine"])
def test_spark_deltalake_and_duckdb_read_the_same(landed: Shop, name: str) -> None:
    shop = landed
    by_deltalake = shop.table(name)
    columns = by_deltalake.schema.names
    catalog = Catalog(environment=shop.environment, relays={}, pipelines={"shop": shop.spec}, root=shop.root)

    by_spark = (
        shop.spark.read.format("delta").load(shop.environment.lake.spark_uri(paths.table("shop", name))).toArrow()
    )
    connection, names = connect(catalog)
    by_duckdb = connection.sql(f"SELECT * FROM shop.{name}").to_arrow_table()

    assert f"shop.{name}" in names
    assert rows(by_spark, columns) == rows(by_deltalake, columns) == rows(by_duckdb, columns)
    assert by_deltalake.num_rows > 0


def test_both_writers_give_the_same_rows(landed: Shop) -> None:
    by_fan_out, by_spark = landed.table("orders"), landed.table("orders_by_spark")

    columns = by_fan_out.schema.names
    assert rows(by_fan_out, columns) == rows(by_spark, columns)
    assert by_fan_out.schema.names == by_spark.schema.names
    assert {row["event_date"] for row in by_spark.to_pylist()} == {dt.date(2023, 11, 14 + days) for days in range(3)}


def test_bounds_in_the_log_never_hide_a_row_from_spark(landed: Shop) -> None:
    address = landed.environment.lake.spark_uri(paths.table("shop", "orders"))
    orders = landed.spark.read.format("delta").load(address)

    # Orders of each day, with and without optional values.
    for row in landed.table("orders").to_pylist()[::2]:
        conditions = [f"amount = {row['amount']}BD", f"event_id = '{row['event_id']}'"]
        if row["bought_at"] is not None:
            conditions.append(f"bought_at = timestamp '{row['bought_at'].isoformat()}'")
            conditions.append(f"score >= {row['score']!r}D and score <= {row['score']!r}D")
        assert orders.where(" and ".join(conditions)).count() == 1


def test_staged_files_of_the_spark_writer_are_removed_once_they_are_committed(landed: Shop) -> None:
    assert landed.objects.list(staging_key("shop", "orders_by_spark") + "/") == []
    prepared = present(PipelineHome(landed.objects, "shop").prepared.read(1, 0))
    assert {share.table: share.writer for share in prepared.tables}["orders_by_spark"] == "spark"


def test_batches_are_committed_to_tables_that_need_spark(full_shop: Shop) -> None:
    shop = full_shop
    shop.processor()
    address = shop.environment.lake.spark_uri(paths.table("shop", "orders_by_spark"))
    shop.spark.sql(f"ALTER TABLE delta.`{address}` SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")

    with pytest.raises(Crash):
        shop.processor(fault=crash_at("committed:orders_by_spark")).process(shop.land_files(1), 0)
    shop.processor().complete_prepared()

    rows_by_spark = shop.spark.read.format("delta").load(address).select("_seq", "_position").collect()
    wanted = [place for place in shop.expected(1).elements() if place[0] == "orders_by_spark"]
    assert sorted(("orders_by_spark", *row) for row in rows_by_spark) == sorted(wanted)
    assert [row["outcome"] for row in shop.ledger("batch_metadata_store") if row["writer"] == "spark"] == [
        "already_committed"
    ]


class TestChangedDeclarations:
    """The declaration changes between runs."""

    def test_a_column_added_later_is_null_in_earlier_rows(self, make_shop: Callable[..., Shop]) -> None:
        narrow = [
            {**table, "columns": table["columns"][:1]} if "columns" in table else table for table in DECLARED["tables"]
        ]
        shop = make_shop(tables=narrow)
        shop.processor().process(shop.land_files(1), 0)

        shop = make_shop()
        shop.epoch = 1
        shop.processor().process(shop.land_files(2), 1)

        assert shop.landed() == shop.expected(1, 2)
        for name in ("orders", "orders_by_spark"):
            levels = {(row["_seq"], row["level"] is not None) for row in shop.table(name).to_pylist()}
            assert levels == {(1, False), (2, True), (2, False)}

    def test_a_column_of_another_type_suspends_its_table_and_no_other(self, make_shop: Callable[..., Shop]) -> None:
        make_shop().processor()
        changed = [
            {
                **table,
                "columns": [
                    {**column, "type": "string"} if column["name"] == "level" else column
                    for column in table.get("columns", [])
                ],
            }
            if table["name"] == "orders"
            else table
            for table in DECLARED["tables"]
        ]
        shop = make_shop(tables=changed)
        shop.epoch = 1

        processor = shop.processor()
        processor.process(shop.land_files(1), 0)

        (held,) = processor.held
        assert (held.table, held.condition) == ("orders", "TABLE_SCHEMA_DIFFERS")
        assert "level is" in held.message
        assert shop.table("orders").num_rows == 0
        assert shop.table("orders_by_spark").num_rows > 0
