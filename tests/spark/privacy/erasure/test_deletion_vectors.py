"""An erasure from a table with deletion vectors written by Spark: nothing reappears or remains."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.records.certificate import Certificates
from deltaworks.privacy.erasure.scan import scan_namespace
from deltaworks.privacy.erasure.token_search import TokenSearch
from deltaworks.tables.log import state_at
from tests.unit.privacy.erasure.people_lake import PeopleLake
from tests.unit.privacy.erasure.test_erasure_run import ask

KEY = paths.table("shop", "orders")


@pytest.fixture
def lake(tmp_path: Path) -> PeopleLake:
    return PeopleLake(tmp_path)


@pytest.fixture
def uri(spark: SparkSession, lake: PeopleLake) -> str:
    """Two files with rows of both people, one with Bob's only; in one file a deletion vector deletes all of
    Ann's rows."""
    uri = lake.namespace.lake.storage.spark_uri(KEY)
    columns = "event_date DATE, player STRING, device STRING, email STRING, amount BIGINT"
    spark.sql(
        f"CREATE TABLE delta.`{uri}` ({columns}) USING delta PARTITIONED BY (event_date) "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    for orders in ([("ann", 1), ("ann", 2), ("bob", 3), ("bob", 4)], [("ann", 5), ("bob", 6)], [("bob", 7)]):
        rows = [(lake.token("player", player), amount) for player, amount in orders]
        frame = spark.createDataFrame(rows, "player STRING, amount BIGINT").coalesce(1)
        frame.selectExpr(
            "DATE'2026-03-01' AS event_date", "player", "'none' AS device", "'none' AS email", "amount"
        ).write.format("delta").mode("append").save(uri)
    spark.sql(f"DELETE FROM delta.`{uri}` WHERE amount IN (1, 4, 5)")
    return uri


def amounts(spark: SparkSession, uri: str) -> list[int]:
    return sorted(row["amount"] for row in spark.read.format("delta").load(uri).collect())


def test_rows_deleted_by_vectors_stay_deleted_and_are_purged(spark: SparkSession, lake: PeopleLake, uri: str) -> None:
    state = state_at(lake.namespace.lake, lake.namespace.objects, KEY)
    assert sum("deletionVector" in added for added in state.files.values()) == 2, "or this would show nothing"
    request = ask(lake, "player", "ann")

    (purged,) = lake.advance()

    assert purged.state == "purged"
    spark.sql(f"REFRESH TABLE delta.`{uri}`")
    assert amounts(spark, uri) == [3, 6, 7]
    assert len(list((lake.root / "lake" / KEY).rglob("deletion_vector_*.bin"))) == 1
    lake.pass_time(days=8)
    # Spark and Hadoop cached the log before its timestamps were changed.
    for noted in (lake.root / "lake" / KEY / "_delta_log").glob("*.crc"):
        noted.unlink()
    for noted in (lake.root / "lake" / KEY).rglob(".*.crc"):
        noted.unlink()
    (certified,) = lake.advance()
    assert (certified.state, certified.waiting_for) == ("certified", "")
    search = TokenSearch([lake.token("player", "ann")])
    assert scan_namespace(lake.namespace, search).keys_with("leak", search.tokens) == set()
    certificate = Certificates(lake.namespace.objects, "players", lake.namespace.vault.objects).read(request.request_id)
    assert certificate is not None
    (orders,) = [table for table in certificate.tables if table.table == "orders"]
    assert (orders.rows_before, orders.rows_after, orders.person_rows, orders.files_removed) == (4, 3, 1, 2)
    assert amounts(spark, uri) == [3, 6, 7]
    assert list((lake.root / "lake" / KEY).rglob("deletion_vector_*.bin")) == []
