"""`deltaworks sql` with time travel."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.errors import ConfigError, ContractError, DeltaworksError
from deltaworks.specs.mutation import NAMES_COLUMNS, REQUEST_COLUMNS
from deltaworks.specs.project import load_catalog
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.lake import Lake
from deltaworks.tables.variant import encode_json
from deltaworks.testing import append_rows, write_project
from tests.commands import invoke
from tests.unit.cli.test_lazy_loading import run as run_afresh
from tests.unit.cli.test_lazy_loading import run_in_turn
from tests.unit.specs.conftest import PIPELINE
from tests.unit.tables.test_versions import set_times

VISITS = f"""\
  - name: visits
    when: {{name: visit}}
    columns:
      - {{name: org_id, path: org, type: string}}
      - {{name: contact_id, path: contact, type: string}}
      - {{name: origin, path: contact, type: string}}
    partition_by: [org_id]
    mutable: {{id: contact_id, origin: origin}}
  - name: requests
    when: {{name: request}}
    columns: [{", ".join(f"{{name: {name}, path: {name}, type: '{kind}'}}" for name, kind in REQUEST_COLUMNS.items())}]
mutations: {{requests: requests}}
"""
run = partial(invoke, "sql")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_project(tmp_path, PIPELINE.replace("stream:", f"{VISITS}stream:"))
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(tmp_path))
    monkeypatch.setenv("DELTAWORKS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DELTAWORKS_ENVIRONMENT", "local")
    for number in (1, 2, 3):
        append("orders", arrow_schema({"amount": "bigint"}), {"amount": number}, number=number)
    times("orders", [0, 60, 120, 180])
    return tmp_path


def lake() -> Lake:
    return Lake(load_catalog().environment.lake)


def folder(name: str) -> Path:
    return Path(lake().storage.uri(paths.table("shop", name)).removeprefix("file://"))


def append(name: str, schema: pa.Schema, row: dict[str, object], *, number: int) -> None:
    """Appends a row to a table, which version 0 creates."""
    append_rows(lake(), paths.table("shop", name), [row], number=number, schema=schema)


def times(name: str, seconds: list[int]) -> None:
    set_times(folder(name).parents[2], seconds, key=f"tables/shop/{name}")


def rows(query: str) -> list[dict[str, object]]:
    answered = run(query, "--json")
    if answered.exception is not None:
        raise answered.exception
    records: list[dict[str, object]] = json.loads(answered.stdout)
    return records


def error_of(query: str) -> DeltaworksError:
    error = run(query).exception
    assert isinstance(error, DeltaworksError), error
    return error


@pytest.mark.parametrize(
    ("table", "total"),
    [
        ("shop.orders", 6),
        ("shop.orders VERSION AS OF 2", 3),
        ("shop.orders FOR VERSION AS OF '2' AS o", 3),
        ('"shop"."orders" version as of 1 + 1 o', 3),
        ("SHOP.Orders VERSION AS OF 0", None),
        ("shop.orders AT (VERSION => 2)", 3),
        ("shop.orders AT (TIMESTAMP => TIMESTAMP '2026-05-01 00:01:00') o", 1),
        ("shop.orders TIMESTAMP AS OF '2026-05-01 00:02:30'", 3),
        ("shop.orders FOR TIMESTAMP AS OF '2026-05-01T03:01:59+02:00' o(n)", 6),
        ("shop.orders TIMESTAMP AS OF '2026-05-01 00:00:59'", None),
        ("shop.orders FOR SYSTEM_TIME AS OF TIMESTAMP '2026-05-01' + INTERVAL 1 MINUTE", 1),
        ("shop.orders TIMESTAMP AS OF current_timestamp()", 6),
        ("shop.orders TIMESTAMP AS OF now() - INTERVAL 1 MINUTE TABLESAMPLE 100%", 6),
        ("(SELECT * FROM shop.orders VERSION AS OF 1 WHERE true LIMIT 5)", 1),
    ],
)
def test_a_table_is_read_as_of_the_given_version_or_time(table: str, total: int | None) -> None:
    column = "n" if "o(n)" in table else "amount"

    assert rows(f"SELECT sum({column}) AS total FROM {table}") == [{"total": total}]


def test_one_statement_reads_several_versions_and_is_otherwise_unchanged() -> None:
    query = """
        WITH past AS (SELECT * FROM shop.orders VERSION AS OF 1)  -- not VERSION AS OF 2
        SELECT orders.amount, 'shop.orders VERSION AS OF 1' AS text, (SELECT len([amount]) FROM past) AS before
        FROM shop.orders TIMESTAMP AS OF '2026-05-01 00:02' ANTI JOIN past USING (amount)
    """

    assert rows(query) == [{"amount": 2, "text": "shop.orders VERSION AS OF 1", "before": 1}]
    shown = run(query.replace("AS before", ""), "--csv").stdout
    assert shown.splitlines()[0].startswith("amount,text,(select_len")


def test_invalid_versions_times_and_tables_are_rejected_with_examples() -> None:
    for query, said in {
        "SELECT * FROM shop.orders TIMESTAMP AS OF 'yesterday'": "'yesterday' is no timestamp of shop.orders",
        "SELECT * FROM shop.orders VERSION AS OF 'first'": "'first' is no version of shop.orders",
        "SELECT * FROM shop.orders VERSION AS OF amount": "amount is no version",
        "SELECT * FROM shop.orders VERSION AS OF NULL": "it is null",
        "WITH c AS (SELECT 1) SELECT * FROM c VERSION AS OF 1": "c is not a table of a pipeline",
        "SELECT * FROM information_schema.tables VERSION AS OF 1": "is not a table of a pipeline",
        "SELECT * FROM shop.orders FOR SYSTEM_VERSION VERSION AS OF 1": "cannot be read",
    }.items():
        error = error_of(query)
        assert isinstance(error, ConfigError)
        assert (error.condition, said in error.message) == ("AS_OF_INVALID", True), error
        assert "VERSION AS OF 12" in error.hint


def test_a_version_or_time_missing_from_the_log_is_rejected_with_the_nearest() -> None:
    error = error_of("SELECT * FROM shop.orders VERSION AS OF 40")
    assert isinstance(error, ContractError)
    assert "to version 3 (2026-05-01 00:03:00 UTC)" in error.message
    assert error_of("SELECT * FROM shop.orders TIMESTAMP AS OF '2020-01-01'").condition == "TABLE_VERSION_UNAVAILABLE"


def test_a_vacuumed_version_is_rejected_with_the_next_complete_one() -> None:
    table = DeltaTable(folder("orders"))
    table.delete("amount < 3")
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

    error = error_of("SELECT * FROM shop.orders VERSION AS OF 2")

    assert error.condition == "TABLE_VERSION_VACUUMED"
    assert "2 of 2 files of version 2 of shop.orders" in error.message
    assert "VERSION AS OF 4" in error.hint
    assert rows("SELECT amount FROM shop.orders VERSION AS OF 4") == [{"amount": 3}]


def test_a_missing_table_is_rejected_as_without_a_version() -> None:
    plain, past = (error_of(f"SELECT * FROM shop.visits{words}") for words in ("", " VERSION AS OF 3"))
    assert plain.message == past.message == ("Table shop.visits is declared but does not exist yet.")
    assert 'Did you mean "orders"' in error_of("SELECT * FROM shop.oders").message


def test_deleted_rows_and_former_ids_are_visible_in_old_versions() -> None:
    visit = arrow_schema(load_catalog().pipeline("shop").table("visits").column_types())
    append("visits", visit, {"org_id": "o", "contact_id": "a", "event_id": "1"}, number=1)
    append("visits", visit, {"org_id": "o", "contact_id": "b", "event_id": "2", "_deleted": True}, number=2)
    times("visits", [0, 60, 120])
    for number, name in enumerate(["Ada", "Ada L."], 1):
        table = lake().open(paths.table("shop", "names"))
        if table is not None:
            table.delete()
        append("names", arrow_schema(NAMES_COLUMNS), {"org_id": "o", "id": "a", "name": name}, number=number)
    times("names", [90, 100, 150, 160])

    def names(when: str) -> list[object]:
        query = f"SELECT contact_name FROM shop.visits_named TIMESTAMP AS OF '2026-05-01 {when}' ORDER BY ALL"
        return [row["contact_name"] for row in rows(query)]

    assert [names(when) for when in ("00:00:30", "00:01:00", "00:01:40", "00:03:00")] == [
        [], ["a"], ["Ada"], ["Ada L."],
    ]  # fmt: skip
    assert rows("SELECT count(*) AS n FROM shop.visits VERSION AS OF 2") == [{"n": 1}]
    assert "consists of two tables" in error_of("SELECT * FROM shop.visits_named VERSION AS OF 1").message


def test_only_tables_a_query_may_name_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    real = Lake.open

    def noted(self: Lake, key: str) -> DeltaTable | None:
        opened.append(key.rpartition("/")[2])
        return real(self, key)

    monkeypatch.setattr(Lake, "open", noted)
    rows("SELECT * FROM shop.orders")
    assert opened == ["orders"]

    listed = rows("SELECT table_name FROM information_schema.tables WHERE table_schema = 'shop'")
    assert {"table_name": "orders"} in listed
    assert {"visits", "names", "progress"} <= set(opened)
    # A name that the query puts together is no less a table.
    assert rows("SELECT amount FROM query('FROM shop.or' || 'ders') ORDER BY 1")[0] == {"amount": 1}


REST = "  - {name: scans, catch_all: true, evolve: rescue, keep_rest: variant}\n"


@pytest.fixture
def scans(project: Path) -> None:
    write_project(project, PIPELINE.replace("stream:", f"{REST}stream:"))
    for number, text in enumerate(('{"price": 1.5, "color": "red"}', '{"price": 2, "color": "blue"}'), start=1):
        append("scans", arrow_schema({"_rest": "variant"}), {"_rest": encode_json(text)}, number=number)


@pytest.mark.usefixtures("scans")
def test_undeclared_fields_are_read_by_their_paths() -> None:
    assert rows("SELECT _rest.price, _rest.color FROM shop.scans WHERE _rest.color = 'red'") == [
        {"price": 1.5, "color": "red"}
    ]
    assert rows("SELECT sum(_rest.price::DOUBLE) AS total, count(_rest.color) AS n FROM shop.scans") == [
        {"total": 3.5, "n": 2}
    ]


@pytest.mark.usefixtures("scans")
@pytest.mark.parametrize(
    ("select", "text"),
    [
        ("sum(_rest.price) FROM shop.scans", "_rest.price"),
        ("1 FROM shop.scans s WHERE s._rest.price > 1.7", "s._rest.price"),
        ("price + 1 FROM (SELECT _rest.price FROM shop.scans)", "_rest.price"),
    ],
)
def test_undeclared_fields_are_cast_before_anything_is_computed(select: str, text: str) -> None:
    error = error_of(f"SELECT {select}")

    assert error.condition == "SQL_REFUSED"
    assert error.message.startswith(f"Line 1: {text} is a variant, with which DuckDB rounds numbers")


def test_plain_queries_load_no_parser_and_no_listing_loads_pandas() -> None:
    printed, modules = run_afresh("sql", "SELECT count(*) FROM shop.orders")
    assert "3" in printed
    assert modules & {"sqlglot", "pandas"} == set()

    printed, modules = run_afresh("sql", "SELECT count(*) FROM shop.orders VERSION AS OF 2")
    assert "2" in printed
    assert "sqlglot" in modules
    _, modules = run_in_turn(
        ("tables",), ("batches", "shop"), ("files", "list", "landing"), ("quarantine", "list", "shop")
    )
    assert "pandas" not in modules


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "people.csv").write_text("name\nada\n")
    return folder


#: What reaches beyond the tables; `{files}` is a folder with `people.csv`.
OUTSIDE = (
    "SELECT * FROM read_csv('{files}/people.csv')",
    "SELECT * FROM '{files}/people.csv'",
    "SELECT * FROM read_text('{files}/people.csv')",
    "SELECT * FROM read_blob('/proc/self/environ')",
    "SELECT * FROM glob('{files}/*')",
    "FROM sniff_csv('{files}/people.csv')",
    "SELECT * FROM read_parquet('{files}/people.csv')",
    "SELECT (SELECT count(*) FROM read_csv('{files}/people.csv')) FROM shop.orders",
    "SELECT * FROM shop.orders UNION ALL BY NAME FROM '{files}/people.csv'",
    "SELECT * FROM 'http://127.0.0.1:9/people.csv'",
    "SELECT * FROM 's3://bucket/people.parquet'",
    "COPY (SELECT 1) TO '{files}/made.csv'",
    "COPY shop.orders TO '{files}/made.parquet'",
    "EXPORT DATABASE '{files}/made'",
    "ATTACH '{files}/made.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{files}/made.duckdb_extension'",
    "CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')",
    "SET enable_external_access = true",
    "RESET enable_external_access",
    "SET temp_directory = '{files}/made'",
    "PRAGMA profiling_output = '{files}/made'",
    "SET lock_configuration = false",
    "SELECT 1; SET enable_external_access = true; SELECT * FROM '{files}/people.csv'",
    "SELECT * FROM shop.orders VERSION AS OF (SELECT count(*) FROM read_csv('{files}/people.csv'))",
)


@pytest.mark.parametrize("query", OUTSIDE)
def test_a_query_reaches_nothing_but_the_tables(files: Path, query: str) -> None:
    before = sorted(files.rglob("*"))

    refused = error_of(query.format(files=files))

    assert refused.condition in ("SQL_REFUSED", "AS_OF_INVALID")
    assert "ada" not in str(refused)
    assert sorted(files.rglob("*")) == before


def test_a_query_does_not_see_variables_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    import deltaworks.cli.sql as command

    monkeypatch.setattr(command, "planted", pa.table({"secret": [1]}), raising=False)

    assert "planted does not exist" in error_of("SELECT * FROM planted").message


def test_an_unconfined_query_may_use_files_and_the_error_says_how(files: Path) -> None:
    query = f"SELECT name, amount FROM '{files}/people.csv', shop.orders ORDER BY 2"

    refused = error_of(query)
    answered = run(query, "--unconfined", "--json")

    assert "--unconfined" in refused.hint
    assert json.loads(answered.stdout)[0] == {"name": "ada", "amount": 1}


def break_pages(file: Path) -> None:
    data, footer = file.read_bytes(), pq.read_metadata(file).serialized_size
    file.write_bytes(data[:4] + b"\xff" * (len(data) - footer - 12) + data[-footer - 8 :])


@pytest.mark.parametrize(
    ("damage", "condition", "command"),
    [
        (Path.unlink, "DATA_FILE_MISSING", "`deltaworks recover files shop orders`"),
        (
            lambda file: file.write_bytes(b"\1" * 3_000),
            "DATA_FILE_UNREADABLE",
            "`deltaworks recover files shop orders`",
        ),
        (break_pages, "DATA_FILE_UNREADABLE", "`deltaworks recover files shop orders --full`"),
    ],
    ids=["missing", "overwritten", "pages"],
)
@pytest.mark.parametrize("query", ["SELECT sum(amount) FROM shop.orders", "SELECT * FROM shop.orders WHERE amount > 0"])
def test_a_damaged_file_is_named_with_its_table_and_repair(
    damage: Callable[[Path], object], condition: str, command: str, query: str
) -> None:
    file = min(folder("orders").rglob("*.parquet"))
    damage(file)

    error = error_of(query)

    assert (error.condition, command in error.hint) == (condition, True)
    assert error.message.startswith("shop.orders: ")
    if damage is not break_pages:  # Arrow names no file whose pages it cannot decode
        assert file.name in error.message
