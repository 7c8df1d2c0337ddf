"""No reprocess, rollback or deletion vector of Spark restores an erased person."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.records.certificate import Certificates
from deltaworks.events import redaction_keys
from deltaworks.privacy.erasure.erasure_run import ErasureRun
from deltaworks.privacy.erasure.reapply import ErasureReapplier
from deltaworks.privacy.erasure.requests import open_namespace, receive_request, token_of
from deltaworks.privacy.erasure.scan import scan_namespace
from deltaworks.privacy.erasure.token_search import TokenSearch
from deltaworks.privacy.tokens.suppression import NO_SUPPRESSION
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.start_over import start_over
from deltaworks.specs.privacy import PrivacySettings
from deltaworks.tables.log import state_at
from tests.spark.engine.conftest import Shop
from tests.spark.recovery.reprocess_harness import EVENTS, ORDERS, ReprocessHarness
from tests.unit.privacy.erasure.people_lake import PeopleLake
from tests.unit.privacy.erasure.test_operation import ask

#: Player of the first event of the first object.
WHO = "o1-0"
TABLES = ("events", "orders", "quarantine")
PRIVACY = {"namespace": "buyers", "subject": "id", "fields": [{"path": "id", "action": "token", "as": "buyer"}]}


class People:
    """A pipeline with one person per event; one person's events are erased after the second batch."""

    def __init__(self, shop: Shop) -> None:
        root = shop.environment.lake.root
        keys = {"kind": "keyring", "folder": f"{shop.environment.lake.prefix}-keyring"}
        settings = PrivacySettings.model_validate({"keys": keys, "vault": {"root": f"{root}-vault"}})
        shop.environment = shop.environment.model_copy(update={"privacy": settings})
        self.stage = ReprocessHarness(shop)
        self.stage.land()
        self.stage.land()
        space = open_namespace(self.stage.catalog(), "buyers")
        self._token = token_of(space, kind="buyer", value=WHO)
        assert self.rows() == 2
        self.others = self.all_rows() - 2
        now = dt.datetime.now(dt.UTC)
        receive_request(space, self._token, received_at=now, by="tests")
        (result,) = ErasureRun(space, now=now).run()
        assert (result.state, self.rows(), self.all_rows()) == ("purged", 0, self.others)

    def rows(self) -> int:
        search = TokenSearch([self._token])
        tables = [self.stage.shop.table(name) for name in TABLES]
        return sum(int(search.matching_rows(batch).sum()) for table in tables for batch in table.to_batches())

    def all_rows(self) -> int:
        return sum(self.stage.shop.table(name).num_rows for name in TABLES)


@pytest.fixture
def people(make_shop: Callable[..., Shop]) -> People:
    return People(make_shop(tables=[EVENTS, ORDERS], privacy=PRIVACY))


@pytest.mark.integration
@pytest.mark.parametrize("protected", [True, False])
def test_a_full_reprocess_drops_erased_subjects(
    people: People, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    if not protected:
        monkeypatch.setattr(redaction_keys, "read_suppression", lambda *_, **__: NO_SUPPRESSION)

    people.stage.reprocess()

    assert people.rows() == (0 if protected else 2)
    assert people.all_rows() == people.others + people.rows()


@pytest.mark.integration
@pytest.mark.parametrize("protected", [True, False])
def test_a_rollback_of_a_pipeline_restores_no_erased_rows(
    spark: SparkSession, people: People, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    if not protected:
        monkeypatch.setattr(ErasureReapplier, "reapply", lambda *_, **__: None)

    done = start_over(
        people.stage.catalog(),
        "shop",
        dry_run=False,
        max_rows=1_000,
        restore_point=RestorePoint(batch=0),
        spark=lambda: spark,
    )

    assert done.recreated == len(TABLES)
    assert people.rows() == (0 if protected else 2)
    back = ErasureReapplier(people.stage.catalog(), "shop").find_reappeared_rows(TABLES)
    assert sum(one.rows for one in back) == people.rows()


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
