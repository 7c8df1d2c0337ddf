"""A pipeline's home opens its records, separates pipelines, and opens nothing before it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects
from deltaworks.control.records.generations import Rollback, StartOver, TableLoss
from deltaworks.errors import ContractError
from tests.records import record_of


@pytest.fixture
def home(tmp_path: Path) -> PipelineHome:
    return PipelineHome(LocalObjects(tmp_path), "shop")


def rollback(ordinal: int, *, table: str = "orders", by: str = "ada") -> Rollback:
    return record_of(
        Rollback,
        pipeline="shop",
        ordinal=ordinal,
        table=table,
        generation=1,
        from_version=9,
        to_version=4,
        by=by,
        at="2026-01-01T00:00:00.000+00:00",
    )


def start_over(generation: int, *, to_batch: int | None = None) -> StartOver:
    return record_of(
        StartOver,
        pipeline="shop",
        generation=generation,
        first_batch=10 * generation,
        start={"seq": generation},
        tables=(TableLoss(table="orders", version=4, rows=1, files=1, bytes=1),),
        at="2026-01-01T00:00:00.000+00:00",
        to_batch=to_batch,
    )


def test_a_home_belongs_to_one_pipeline(home: PipelineHome) -> None:
    home.held.request_resume("orders", by="ada")
    home.rollbacks.get_or_create(rollback(1))

    assert PipelineHome(home.objects, "games").rollbacks.newest() == 0
    assert home.rollbacks.newest() == 1
    assert home.table("orders") == "tables/shop/orders"
    assert home.control("progress") == "control/pipelines/shop/progress"
    assert all(key.startswith("control/pipelines/shop/") for key in home.objects.list(""))


def test_a_rollback_is_unfinished_until_its_completion_is_recorded(home: PipelineHome) -> None:
    assert home.rollbacks.get_or_create(rollback(1)) == home.rollbacks.get_or_create(rollback(1, by="grace"))
    with pytest.raises(ContractError, match=r"ROLLBACK_UNFINISHED.*restore shop orders"):
        home.rollbacks.reject_unfinished()

    home.rollbacks.record_completion(rollback(1), version=10)
    home.rollbacks.record_completion(rollback(1), version=11)
    home.rollbacks.get_or_create(rollback(2, table="items"))

    assert home.rollbacks.unfinished() == rollback(2, table="items")
    ((record, end),) = home.rollbacks.table_rollbacks("orders")
    assert (record, end and end.version) == (rollback(1), 10)


def test_a_completed_start_over_begins_a_generation(home: PipelineHome) -> None:
    home.start_overs.reject_unfinished()
    home.start_overs.get_or_create(start_over(2))
    with pytest.raises(ContractError, match="START_OVER_UNFINISHED"):
        home.start_overs.reject_unfinished()
    assert home.generations.current() == 1

    home.start_overs.record_completion(start_over(2), versions={"orders": 5})
    home.start_overs.reject_unfinished()

    assert home.generations.effective().current.first_batch == 20
    assert home.start_overs.rollback_versions("orders") == [5]
    assert home.start_overs.rollback_versions("items") == []


def test_surviving_batches_are_limited_by_every_later_generation(home: PipelineHome) -> None:
    for begun in (start_over(2, to_batch=7), start_over(3), start_over(4, to_batch=3)):
        home.start_overs.get_or_create(begun)

    assert home.start_overs.last_surviving_batch(4, current=4) is None
    assert home.start_overs.last_surviving_batch(3, current=4) == 3
    assert home.start_overs.last_surviving_batch(2, current=4) == -1
    assert home.start_overs.last_surviving_batch(1, current=2) == 7


def test_opening_a_home_imports_neither_the_engine_nor_specs() -> None:
    code = "import sys, deltaworks.control.home; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()

    assert {"pyspark", "deltalake", "pyarrow", "boto3", "deltaworks.specs.pipeline"} & set(loaded) == set()
