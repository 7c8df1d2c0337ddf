"""Statements are checked by DuckDB's own syntax tree before a session sees them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.errors import ConfigError
from deltaworks.sql_server import parser_process
from deltaworks.sql_server.messages import name_parameters, parameter_types
from deltaworks.sql_server.parser_process import GuardedParser
from deltaworks.sql_server.references import StatementParser

PARSER = StatementParser()
COLUMNS = {("games", "e"): {"a": "BIGINT", "b": "VARCHAR", "t": "TIMESTAMP WITH TIME ZONE", "d": "DECIMAL(9,2)"}}


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("SELECT 1", set()),
        ("FROM games.e;", {("games", "e")}),
        ('SELECT * FROM "LAKE"."Games"."E" JOIN games.f USING (a)', {("games", "e"), ("games", "f")}),
        (
            "WITH x AS (SELECT * FROM games.e) SELECT * FROM x, (SELECT 1 FROM games.f)",
            {("games", "e"), ("games", "f")},
        ),
        ("SELECT (SELECT max(a) FROM games.e), list_transform([1], x -> x + 1)", {("games", "e")}),
        ("DESCRIBE games.e", {("games", "e")}),
        ("SUMMARIZE games.e", {("games", "e")}),
        ("SELECT * FROM range(3), unnest([1])", set()),
        ("SELECT 'é;é' AS ü; ", set()),
    ],
)
def test_a_select_names_the_tables_it_reads(text: str, tables: set[tuple[str, str]]) -> None:
    assert PARSER.parse(text).tables == tables


@pytest.mark.parametrize("text", ["SHOW TABLES", "SHOW ALL TABLES", "SELECT * FROM information_schema.columns"])
def test_lists_of_tables_are_noticed(text: str) -> None:
    assert PARSER.parse(text).lists_tables


REFUSED = [
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM glob('*')",
    "SELECT (SELECT count(*) FROM read_csv('x'))",
    "SELECT * FROM main.read_parquet('s3://x')",
    "SELECT getenv('HOME')",
    "SELECT main.getenv('HOME')",
    "SELECT current_setting('temp_directory')",
    "SELECT write_log('x')",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('x')",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_views",
    "SELECT * FROM pg_catalog.pg_class, sqlite_master",
    "SELECT * FROM __deltaworks_games__e",
    "SELECT * FROM temp.main.__deltaworks_games__e",
    "SELECT * FROM temp.__deltaworks_games__e",
    "SELECT * FROM __deltaworks_x WHERE EXISTS (WITH __deltaworks_x AS (SELECT 1) FROM __deltaworks_x)",
    "DESCRIBE __deltaworks_games__e",
    "SELECT * FROM games.e AT (VERSION => 1)",
    "SELECT 1; SELECT 2",
    "SELECT 1) AS x; DROP TABLE games.e; --",
    "INSERT INTO games.e VALUES (1)",
    "DROP TABLE games.e",
    "ATTACH 'x.db'",
    "COPY (SELECT 1) TO 'x'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET memory_limit = '1TB'",
    "PRAGMA database_list",
    "CALL enable_logging()",
    "SELECT * FROM enable_logging()",
    "SELECT * FROM checkpoint()",
    "EXPORT DATABASE 'x'",
    "PREPARE x AS SELECT 1",
    "SELECT $name",
    "SELECT $1, $3",
    "SELECT",
    "",
    "\x00",
    "SELECT '\ud800'",
    "SELECT " + "(" * 5_000 + "1" + ")" * 5_000,
    "SELECT 1" + "+1" * 20_000,
    "SELECT " + " + ".join(["1"] * 5_000),
    "SELECT '" + "x" * (1 << 20) + "'",
    "SELECT " + ", ".join(f"${number}" for number in range(1, 1_500)),
]


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: ascii(text)[:60])
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="SQL_REFUSED"):
        PARSER.parse(text)


@settings(max_examples=30)
@given(st.text(max_size=40))
def test_any_text_is_a_statement_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert PARSER.parse(text).parameters >= 0


@pytest.mark.parametrize(
    ("condition", "types"),
    [
        ("a > ?", ["BIGINT"]),
        ("t BETWEEN ? AND ? AND b IN (?, ?)", ["TIMESTAMPTZ", "TIMESTAMPTZ", "TEXT", "TEXT"]),
        ("d = $2 AND b LIKE $1", ["VARCHAR", "DECIMAL(9, 2)"]),
        ("(?) = a AND -? < a", ["BIGINT", "BIGINT"]),
        ("date_trunc('day', t) = ?::DATE LIMIT ? OFFSET ?", ["DATE", "BIGINT", "BIGINT"]),
        ("b = '?' AND ? IS NOT NULL -- ?", [""]),
        ("b = 'ü?' AND a = ?", ["BIGINT"]),
    ],
)
def test_parameters_have_the_types_of_their_surroundings(condition: str, types: list[str]) -> None:
    text = f"SELECT * FROM lake.games.e AS x WHERE {condition}"
    assert PARSER.parse(text).parameters == len(types)
    assert parameter_types(text, len(types), COLUMNS) == types


PIECES = st.sampled_from(["?", "'?'", '"?"', "/* ? */", "$$?$$", " + ", ", ", "é", "'é''?'", "-- ?\n", "x"])


@given(st.lists(PIECES, max_size=12))
def test_each_parameter_is_numbered_in_order_and_nothing_else_changes(pieces: list[str]) -> None:
    expected, number = "", 0
    for piece in pieces:
        number += piece == "?"
        expected += f"deltaworks_parameter({number}) " if piece == "?" else f"{piece} "
    assert name_parameters("".join(f"{piece} " for piece in pieces)) == expected


def test_a_text_that_the_parser_never_ends_with_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_process, "PARSE_SECONDS", 1.0)
    parser = GuardedParser()
    try:
        assert parser.parse("sam", "FROM games.e").tables == {("games", "e")}
        with pytest.raises(ConfigError, match=r"SQL_REFUSED.*could not be parsed"):
            parser.parse("sam", "with " + "x as (with " * 40)
        assert parser.parse("sam", "SELECT ?").parameters == 1
        with pytest.raises(ConfigError, match="read_text"):
            parser.parse("sam", "SELECT * FROM read_text('x')")
    finally:
        parser.close()
