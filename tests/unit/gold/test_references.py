"""Inputs of gold: all columns a query may read, and small CSV files loaded as tables and replaced on changes."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError, ContractError
from deltaworks.gold import references
from deltaworks.gold.input_views import may_reference
from deltaworks.gold.model_tables import changed_external_inputs
from deltaworks.gold.references import ReferenceResult, refresh_references
from deltaworks.gold.refresh import pending_gold
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import MAX_REFERENCE_BYTES
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from tests.unit.maintenance.table_data import ORDERS, SHOP, make, project

SPLITS = "ticker,ex_date,ratio,note\nAAPL,2000-06-21,2,\nAAPL,2005-02-28,2,second\nMSFT,2003-02-18,2,\n"
COLUMNS = """\
    columns:
      - {name: ticker, type: string}
      - {name: ex_date, type: date}
      - {name: ratio, type: "decimal(9,4)"}
"""
REFERENCES = f"references:\n  - name: splits\n    file: reference/splits.csv\n    key: [ticker, ex_date]\n{COLUMNS}"
GOLD = "gold: {tables: [{name: daily, sql: gold/daily.sql, reads: [orders, splits], partition_by: event_date}]}\n"
SQL = "SELECT event_date, count(*) AS n FROM orders CROSS JOIN splits GROUP BY event_date"


def shop(folder: Path, csv: str = SPLITS, declared: str = REFERENCES) -> Catalog:
    files = {"gold/daily.sql": SQL, "reference/splits.csv": csv}
    return project(folder, sql=files, shop=SHOP + ORDERS + GOLD + declared)


def rows(catalog: Catalog) -> pa.Table:
    return present(Lake(catalog.environment.lake).rows(paths.table("shop", "splits")))


def refreshed(catalog: Catalog) -> ReferenceResult:
    (result,) = refresh_references(catalog, "shop")
    return result


def test_a_file_becomes_a_table_of_the_declared_columns(tmp_path: Path) -> None:
    catalog = shop(tmp_path)

    result = refreshed(catalog)

    assert (result.replaced, result.rows) == (True, 3)
    assert rows(catalog).column_names == ["ticker", "ex_date", "ratio"]
    assert rows(catalog).column("ex_date").to_pylist()[0] == dt.date(2000, 6, 21)


def test_a_file_is_loaded_once_and_a_changed_one_in_one_commit(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    first = refreshed(catalog)
    assert refreshed(catalog) == ReferenceResult("splits", False, 3, first.version)

    again = refreshed(shop(tmp_path, SPLITS + "GOOG,2014-04-03,2,\n"))

    assert (again.replaced, again.rows, again.version) == (True, 4, first.version + 1)
    assert rows(catalog).num_rows == 4
    narrow = shop(tmp_path, SPLITS, REFERENCES.replace('      - {name: ratio, type: "decimal(9,4)"}\n', ""))
    assert refreshed(narrow).version == first.version + 2
    assert rows(narrow).column_names == ["ticker", "ex_date"]


def test_a_changed_table_is_replaced_from_its_file(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    refreshed(catalog)
    table = present(Lake(catalog.environment.lake).open(paths.table("shop", "splits")))
    table.delete("ticker = 'MSFT'")
    assert rows(catalog).num_rows == 2

    assert refreshed(catalog).replaced
    assert rows(catalog).num_rows == 3


def test_of_concurrent_runs_one_replaces_the_table(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    refreshed(catalog)
    other = shop(tmp_path, SPLITS + "GOOG,2014-04-03,2,\n")

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: refreshed(other), range(4)))

    assert [result.replaced for result in results].count(True) == 1
    assert {result.version for result in results} == {2}
    assert rows(catalog).num_rows == 4


def test_a_run_that_lost_the_race_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = shop(tmp_path)
    refreshed(catalog)
    newer = shop(tmp_path, SPLITS + "GOOG,2014-04-03,2,\n")
    written = references.write_file
    overtaken: list[ReferenceResult] = []

    def slowly(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(references, "write_file", written)
        overtaken.append(refreshed(newer))
        return written(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(references, "write_file", slowly)

    result = refreshed(newer)

    assert (overtaken[0].replaced, result.replaced, result.version) == (True, False, overtaken[0].version)
    assert rows(catalog).num_rows == 4


def test_an_object_in_the_lake_can_be_the_file(tmp_path: Path) -> None:
    catalog = shop(tmp_path, declared=REFERENCES.replace("file: reference/splits.csv", "object: kept/splits.csv"))
    with pytest.raises(ContractError, match="the lake has no object kept/splits"):
        refreshed(catalog)

    open_objects(catalog.environment.lake).put("kept/splits.csv", SPLITS.encode())

    assert refreshed(catalog).rows == 3


@pytest.mark.parametrize(
    ("csv", "problem"),
    [
        (SPLITS + "AAPL,2005-02-28,3,\n", "1 keys are duplicated, such as AAPL, 2005-02-28"),
        (SPLITS + "AAPL,,3,\n", "key column ex_date is empty in 1 rows, first in row 4"),
        (SPLITS + "AAPL,soon,3,\n", "soon"),
        (SPLITS + "AAPL,2006-01-01,1.23456,\n", "Row #5: Rescaling Decimal value would cause data loss"),
        ("ticker,ex_date\nAAPL,2000-06-21\n", "ratio"),
        ("", "mpty"),
    ],
)
def test_an_invalid_file_keeps_the_previous_table(tmp_path: Path, csv: str, problem: str) -> None:
    refreshed(shop(tmp_path))
    catalog = shop(tmp_path, csv)

    with pytest.raises(ContractError, match=problem) as refused:
        refreshed(catalog)

    assert refused.value.condition == "REFERENCE_INVALID"
    assert rows(catalog).num_rows == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("reference/splits.csv", "../splits.csv"), "is not a path below its folder"),
        (("file: reference/splits.csv", "object: tables/shop/x.csv"), "are reserved"),
        (("file: reference/splits.csv", "file: a.csv, object: b.csv"), ""),
        (("reference/splits.csv", "reference/split.csv"), "did you mean 'reference/splits.csv'?"),
        (("key: [ticker, ex_date]", "key: [tickr]"), "'tickr' is not a column; did you mean 'ticker'?"),
        (("type: date", "type: array<date>"), "CSV does not support array<date>"),
        (("key: [", "effective_date: ratio\n    key: ["), "'ratio' is not a column of type date"),
        (("name: splits", "name: orders"), "table orders is declared twice"),
    ],
)
def test_invalid_declarations_are_rejected(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        shop(tmp_path, declared=REFERENCES.replace(*change))

    assert said in refused.value.message


def test_a_large_file_or_an_external_link_is_rejected(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    file = catalog.folder("shop") / "reference" / "splits.csv"
    with file.open("r+b") as opened:
        opened.truncate(MAX_REFERENCE_BYTES + 1)
    with pytest.raises(ContractError, match="more than 16 MiB"):
        refreshed(catalog)

    (tmp_path / "secret.csv").write_text(SPLITS)
    file.unlink()
    file.symlink_to(tmp_path / "secret.csv")
    with pytest.raises(ContractError, match="is outside"):
        refreshed(catalog)
    file.unlink()
    with pytest.raises(ContractError, match="No such file"):
        refreshed(catalog)


def test_a_pending_check_loads_the_file_and_reports_the_change(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    make(Lake(catalog.environment.lake), "shop", "orders", files=1, days=1)
    assert changed_external_inputs(catalog, "shop") == ["splits"]
    pending_gold(catalog, "shop", refresh_inputs=False)
    assert changed_external_inputs(catalog, "shop") == ["splits"]

    (result,) = pending_gold(catalog, "shop")

    assert result.spark_work_count == 1
    assert {*result.built_from} == {"orders", "splits"}
    assert changed_external_inputs(catalog, "shop") == []
    assert rows(catalog).num_rows == 3


@pytest.mark.parametrize(
    ("sql", "column"),
    [
        ("SELECT event_date, count(*) FROM events GROUP BY event_date", "event_date"),
        ("SELECT e.DEVICE_ID FROM events AS e", "device_id"),
        ("SELECT `odd name` FROM events", "odd name"),
        ("SELECT * FROM events", "country"),
        ("SELECT * EXCEPT (country) FROM events", "platform"),
        ("SELECT count(*), events.* FROM events", "country"),
        ("SELECT count(*) FROM events NATURAL JOIN purchase", "country"),
        ("SELECT 1 FROM events PIVOT (count(1) FOR platform IN ('ios'))", "country"),
        ("FROM events |> WHERE platform = 'ios'", "country"),
        ("TABLE events", "country"),
    ],
)
def test_columns_a_query_reads_are_found(sql: str, column: str) -> None:
    assert may_reference(sql, column)


@pytest.mark.parametrize(
    "sql", ["SELECT platform, count(*) FROM events GROUP BY platform", "SELECT COUNT( * ) AS tables FROM events"]
)
def test_columns_no_query_reads_are_omitted(sql: str) -> None:
    assert not may_reference(sql, "country")
