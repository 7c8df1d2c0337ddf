"""A full reprocess and a rollback to a batch restore no erased person."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from deltaworks.events import redaction_keys
from deltaworks.privacy.erasure.erasure_run import ErasureRun
from deltaworks.privacy.erasure.reapply import ErasureReapplier
from deltaworks.privacy.erasure.requests import open_namespace, receive_request, token_of
from deltaworks.privacy.erasure.token_search import TokenSearch
from deltaworks.privacy.tokens.suppression import NO_SUPPRESSION
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.start_over import start_over
from deltaworks.specs.privacy import PrivacySettings
from tests.spark.engine.conftest import Shop
from tests.spark.recovery.reprocess_harness import EVENTS, ORDERS, ReprocessHarness

pytestmark = pytest.mark.integration
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


@pytest.mark.parametrize("protected", [True, False])
def test_a_full_reprocess_drops_erased_subjects(
    people: People, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    if not protected:
        monkeypatch.setattr(redaction_keys, "read_suppression", lambda *_, **__: NO_SUPPRESSION)

    people.stage.reprocess()

    assert people.rows() == (0 if protected else 2)
    assert people.all_rows() == people.others + people.rows()


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
