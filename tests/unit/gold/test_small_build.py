"""Single dates of few rows are built without Spark, with all that a build promises; what is left to it has a reason."""

from __future__ import annotations

import datetime as dt
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from deltaworks.control import paths
from deltaworks.errors import ConcurrencyError, ContractError, DeltaworksError
from deltaworks.gold import build as build_module
from deltaworks.gold import small_build
from deltaworks.gold.build import rebuild_gold
from deltaworks.gold.pinned_inputs import BUILT_FROM, pin_inputs, read_built_from
from deltaworks.gold.small_build import SmallBuilds
from deltaworks.gold.table_build import GoldTableResult, TableJob, describe_gold, plan_job
from deltaworks.gold.table_commit import DUCKDB, ENGINE, OPERATION
from deltaworks.operations.base import OperationContext
from deltaworks.operations.gold import BuildOptions, build
from deltaworks.operations.registry import get_operation
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from deltaworks.tables.rewrite import SparkRequiredError
from deltaworks.testing import append_rows, declare_pipeline, declare_table, load_project, present
from tests.unit.gold.gold_planning import build_planned

FIRST = dt.date(2026, 3, 1)
KEY = paths.table("shop", "daily")
DAILY_SQL = "SELECT event_date, shop, count(*) AS orders, sum(amount) AS amount FROM orders GROUP BY 1, 2"
SCHEMA = pa.schema(
    [
        ("event_id", pa.string()),
        ("event_time", pa.timestamp("us", "UTC")),
        ("event_date", pa.date32()),
        ("_seq", pa.int64()),
        ("_position", pa.int64()),
        ("shop", pa.string()),
        ("amount", pa.int64()),
        ("price", pa.float64()),
    ]
)


class SparkStartedError(Exception):
    """A table was left to Spark."""


def no_spark() -> NoReturn:
    raise SparkStartedError


class Shop:
    """A shop whose gold table `daily` was built for three dates."""

    def __init__(self, folder: Path, sql: str = DAILY_SQL, **edits: Any) -> None:
        table = {"name": "daily", "sql": "gold/daily.sql", "reads": ["orders"], "partition_by": "event_date"} | edits
        gold = {"dedupe": {"by": "event_id", "within_days": 1, "within_hours": 1}, "tables": [table]}
        orders = declare_table("orders", "shop string", "amount long", "price double")
        event = {"name": {"path": "name"}, "time": {"path": "time"}, "id": "id"}
        self.folder = folder
        self.catalog: Catalog = load_project(
            folder,
            declare_pipeline(orders, gold=gold, event=event),
            files={"pipelines/shop/gold/daily.sql": sql},
        )
        self.lake, self.spec = Lake(self.catalog.environment.lake), self.catalog.pipeline("shop")
        self._seq = 0
        self.land((0, "a", 5), (1, "a", 6), (2, "b", 7))
        job = self.job()
        build_planned(self.lake, "shop", job, self.spec.gold.dedupe)
        describe_gold(self.lake, self.spec, job)

    def land(self, *orders: tuple[int, str | None, int], ids: tuple[str, ...] = ()) -> None:
        """Appends orders: the number of their date, shop and amount."""
        rows = []
        for place, (day, shop, amount) in enumerate(orders):
            self._seq += 1
            date = FIRST + dt.timedelta(days=day)
            time = dt.datetime.combine(date, dt.time(12), dt.UTC)
            event_id = ids[place] if ids else f"e{self._seq}"
            values = (event_id, time, date, self._seq, 0, shop, amount, 0.5)
            rows.append(dict(zip(SCHEMA.names, values, strict=True)))
        append_rows(
            self.lake,
            paths.table("shop", "orders"),
            rows,
            schema=SCHEMA,
            partition_by=["event_date"],
            number=self._seq,
        )

    def job(self, **options: Any) -> TableJob:
        (table,) = self.spec.gold.tables
        inputs = pin_inputs(self.lake, self.spec, table.reads)
        return plan_job(self.catalog, self.spec, self.lake, table, inputs, key=KEY, **options)

    def build(self, *days: int, spark: Callable[[], Any] = no_spark) -> GoldTableResult:
        dates = frozenset(FIRST + dt.timedelta(days=day) for day in days) or None
        return rebuild_gold(spark, self.catalog, "shop", dates=dates).table("daily")

    def reason(self, **options: Any) -> str:
        return SmallBuilds(self.lake, self.spec).reason_for_spark(self.job(**options))

    def rows(self) -> list[tuple[Any, ...]]:
        listed = present(self.lake.rows(KEY)).to_pylist()
        return sorted(((row["event_date"] - FIRST).days, *list(row.values())[1:]) for row in listed)

    @property
    def version(self) -> int:
        return present(self.lake.open(KEY)).version()

    @property
    def table_folder(self) -> Path:
        return Path(self.lake.storage.uri(KEY).removeprefix("file://"))

    def build_metadata(self) -> dict[str, Any]:
        """Returns the metadata of the newest commit of a build."""
        commits = commit_history(self.lake, KEY, newest=self.version)
        return dict(next(commit.metadata for commit in commits if BUILT_FROM in commit.metadata))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_changed_dates_are_built_without_spark(shop: Shop) -> None:
    # e1 was an order of the first date: its copy on the next date does not count.
    shop.land((0, "b", 1), (1, "a", 90), (1, "a", 4), ids=("new", "e1", "newer"))

    result = shop.build()

    assert shop.rows() == [(0, "a", 1, 5), (0, "b", 1, 1), (1, "a", 2, 10), (2, "b", 1, 7)]
    assert (result.engine, result.skipped, result.spark_reason) == (DUCKDB, False, "")
    assert (result.rows, result.duplicates_dropped, result.version) == (3, 1, shop.version)
    assert result.partitions == ("2026-03-01", "2026-03-02")
    metadata = shop.build_metadata()
    assert (metadata[ENGINE], metadata["operation"], metadata[BUILT_FROM]) == (DUCKDB, OPERATION, result.built_from)
    assert shop.build().skipped, "nothing has changed since"


def test_requested_dates_retain_the_versions_that_the_others_were_built_from(shop: Shop) -> None:
    before = read_built_from(shop.lake, KEY)
    shop.land((0, "b", 1), (2, "b", 3))

    assert shop.build(0).engine == DUCKDB
    assert shop.rows() == [(0, "a", 1, 5), (0, "b", 1, 1), (1, "a", 1, 6), (2, "b", 1, 7)]
    assert read_built_from(shop.lake, KEY).versions == before.versions
    assert shop.build().engine == DUCKDB, "the other date waited for a build of all changes"
    assert shop.rows()[-1] == (2, "b", 2, 10)


def test_a_date_that_lost_its_rows_becomes_empty(shop: Shop) -> None:
    present(shop.lake.open(paths.table("shop", "orders"))).delete("shop = 'b'")

    assert shop.build(2).rows == 0
    assert shop.rows() == [(0, "a", 1, 5), (1, "a", 1, 6)]


@pytest.mark.parametrize(
    ("sql", "edits", "expected"),
    [
        (DAILY_SQL.replace("amount)", "price)"), {}, "the sum of floating-point numbers depends on their order"),
        (DAILY_SQL, {"affects": "all"}, "it computes all rows: its inputs changed, and any change affects all rows"),
        (DAILY_SQL, {"refresh": "full"}, "it computes all rows"),
        (DAILY_SQL, {"affects": {"orders": "onwards"}}, "it computes all dates from 2026-02-28 on"),
        (DAILY_SQL, {"checks": {"max_drop": 0.5}}, "Spark checks its max_drop"),
        (
            "SELECT event_date, date_trunc('HOUR', event_time) AS hour, count(*) AS n FROM orders GROUP BY 1, 2",
            {"grain": {"column": "hour", "part": "hour"}},
            "it declares a grain",
        ),
    ],
)
def test_what_is_left_to_spark_has_a_reason(tmp_path: Path, sql: str, edits: dict[str, Any], expected: str) -> None:
    shop = Shop(tmp_path, sql, **edits)
    shop.land((0, "c", 1))

    assert expected in shop.reason()
    with pytest.raises((SparkStartedError, DeltaworksError)):
        shop.build()


def test_a_table_that_does_not_exist_or_was_defined_anew_is_left_to_spark(shop: Shop) -> None:
    assert shop.reason(full=True) == "it computes all rows: a full rebuild was requested"
    file = shop.folder / "include" / "pipelines" / "shop" / "gold" / "daily.sql"
    file.write_text(DAILY_SQL.replace("count(*)", "count(shop)"))

    assert shop.reason() == "it computes all rows: its definition changed, or an input was recreated"
    assert shop.reason(dates=frozenset([FIRST])) == "its definition changed, or an input was recreated"


def test_large_inputs_are_left_to_spark(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.land((0, "b", 1))
    assert shop.reason() == ""
    monkeypatch.setattr(small_build, "free_memory_bytes", lambda: 1_000)
    assert "too many for the 1,000 bytes of memory that are free" in shop.reason()
    monkeypatch.setattr(small_build, "MAX_INPUT_BYTES", 100)
    assert "bytes of input files, more than 100" in shop.reason()


def test_an_answer_with_other_columns_is_left_to_spark(shop: Shop) -> None:
    rows = present(shop.lake.rows(KEY))
    narrow = rows.cast(rows.schema.set(3, rows.schema.field("amount").with_type(pa.int32())))
    write_deltalake(
        str(shop.table_folder),
        narrow,
        mode="overwrite",
        schema_mode="overwrite",
        partition_by=["event_date"],
        commit_properties=CommitProperties(custom_metadata={"userMetadata": json.dumps(shop.build_metadata())}),
    )
    shop.land((0, "b", 1))

    with pytest.raises(SparkRequiredError, match="the columns of its answer changed"):
        SmallBuilds(shop.lake, shop.spec).build(shop.job())


def test_the_command_prints_what_computed_a_table_and_why_spark_did(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.land((0, "b", 1))
    operation = get_operation("rebuild_gold")
    context = OperationContext(operation=operation, catalog=shop.catalog, subject="shop")
    monkeypatch.setattr(OperationContext, "spark", lambda _: pytest.fail("Spark was started"))
    (listing,) = build(context, BuildOptions(dates=str(FIRST))).displayed_parts()
    assert DUCKDB in str(listing)

    def by_spark(_: Any, __: Any, ___: Any, job: TableJob, ____: Any) -> tuple[TableJob, GoldTableResult]:
        return job, GoldTableResult("daily", False, job.plan.reason, job.built_from, engine="Spark")

    monkeypatch.setattr(OperationContext, "spark", lambda _: None)
    monkeypatch.setattr(build_module, "build_table", by_spark)
    (listing,) = build(context, BuildOptions(full=True)).displayed_parts()
    assert "it computes all rows: a full rebuild was requested" in str(listing)


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        ({"unique": ["event_date"]}, "1 values of (event_date) are duplicated, such as 2026-03-01"),
        ({"not_null": ["shop"]}, "1 rows without shop"),
        ({"min_rows": 4}, "2 rows where at least 4 are expected"),
    ],
)
def test_an_answer_that_fails_a_check_is_not_published(tmp_path: Path, checks: dict[str, Any], expected: str) -> None:
    shop = Shop(tmp_path, checks=checks)
    before = shop.version, shop.rows()
    shop.land((0, None if "not_null" in checks else "b", 1))
    with pytest.raises(ContractError, match="GOLD_CHECK_FAILED") as failed:
        shop.build(0)

    assert expected in failed.value.message
    assert (shop.version, shop.rows()) == before


def test_a_check_that_holds_lets_the_answer_be_published(tmp_path: Path) -> None:
    shop = Shop(tmp_path, checks={"unique": ["event_date", "shop"], "not_null": ["shop"], "min_rows": 1})
    shop.land((0, "b", 1))

    assert shop.build(0).engine == DUCKDB
    assert shop.build(9).rows == 0, "a requested date without events needs no row"


def test_a_build_that_was_overtaken_does_not_commit(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.land((0, "b", 1))
    answer = small_build.planned_answer

    def overtaken(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(small_build, "planned_answer", answer)
        shop.build(0)
        return answer(*arguments, **options)

    monkeypatch.setattr(small_build, "planned_answer", overtaken)
    with pytest.raises(ConcurrencyError, match="GOLD_OVERTAKEN"):
        shop.build(0)
    assert shop.rows()[:2] == [(0, "a", 1, 5), (0, "b", 1, 1)]


KILLED = """
import os, signal, sys
from deltaworks.gold.build import rebuild_gold
from deltaworks.specs.project import load_catalog
from deltaworks.tables import files_commit
from pathlib import Path

files_commit.write_commit = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
rebuild_gold(lambda: sys.exit(3), load_catalog("local", root=Path(sys.argv[1])), "shop")
"""


def test_a_kill_before_the_commit_leaves_the_table_as_it_was(shop: Shop) -> None:
    shop.land((0, "b", 1))
    before = shop.version, shop.rows()
    files = sorted(shop.table_folder.rglob("*.parquet"))

    command = [sys.executable, "-c", KILLED, str(shop.folder)]
    done = subprocess.run(command, env={"PYTHONPATH": str(PROJECT_ROOT / "include"), "TZ": "UTC"}, check=False)

    assert done.returncode == -signal.SIGKILL
    assert len(sorted(shop.table_folder.rglob("*.parquet"))) > len(files), "its files were written"
    assert (shop.version, shop.rows()) == before
    assert shop.build().engine == DUCKDB
    assert shop.rows() == [(0, "a", 1, 5), (0, "b", 1, 1), (1, "a", 1, 6), (2, "b", 1, 7)]


def test_a_build_with_an_open_session_is_sparks(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.land((0, "b", 1))
    monkeypatch.setattr(build_module, "SmallBuilds", lambda *_: pytest.fail("DuckDB was used"))
    monkeypatch.setattr(build_module, "InputViews", lambda *_: pytest.fail("views of Spark"))

    with pytest.raises(pytest.fail.Exception, match="views of Spark"):
        rebuild_gold(object(), shop.catalog, "shop")  # type: ignore[arg-type]


def test_strict_tables_are_not_built_from_more_than_new_rows(tmp_path: Path) -> None:
    # Partial sums have no checks, so that this table needs more.
    shop = Shop(tmp_path, refresh="strict", checks={"unique": ["event_date", "shop"]})
    shop.land((0, "b", 1))

    with pytest.raises(ContractError, match="GOLD_NOT_INCREMENTAL"):
        shop.build()
