"""Queries: unknown names are reported, those that Spark accepts are not, and valid ones are cached."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.checks import query_errors, sql_files
from deltaworks.specs.checks.project import check_project
from deltaworks.specs.checks.query_errors import parse_query
from deltaworks.specs.checks.sql_files import MAX_QUERIES, QueryCache, query_digest
from deltaworks.specs.checks.sql_names import QueryNames
from deltaworks.testing import present
from tests.processes import run_process

VIEWS = {
    "orders": ["event_date", "event_time", "amount", "items", "campaign", "user_id", "name"],
    "clicks": ["event_date", "event_time", "page", "user_id"],
    "anything": None,
}
#: Queries that Spark reads, and the columns of their answers, None where these cannot be told.
RIGHT: dict[str, list[str] | None] = {
    "SELECT event_date, count(*) AS n FROM orders GROUP BY event_date": ["event_date", "n"],
    "SELECT EVENT_DATE, Amount FROM Orders": ["EVENT_DATE", "Amount"],
    "SELECT o.event_date, c.page FROM orders o JOIN clicks c ON o.user_id = c.user_id": ["event_date", "page"],
    "SELECT campaign.cost, o.campaign.a.b FROM orders o": ["cost", "b"],
    "SELECT event_date, item.sku FROM orders LATERAL VIEW explode(items) t AS item": ["event_date", "sku"],
    "SELECT event_date, t.item FROM orders LATERAL VIEW OUTER posexplode(items) t AS pos, item": ["event_date", "item"],
    "SELECT event_date, col FROM orders LATERAL VIEW explode(items)": ["event_date", "col"],
    "SELECT transform(items, x -> x.a) AS p, filter(items, (x, i) -> i > 0 AND x.a = amount) AS f FROM orders": [
        "p",
        "f",
    ],
    "SELECT amount + 1 AS a, a * 2 AS b FROM orders": ["a", "b"],
    "SELECT event_date AS d, sum(amount) AS s FROM orders GROUP BY d HAVING s > 3 ORDER BY s DESC": ["d", "s"],
    "SELECT sum(amount) OVER w AS s FROM orders WINDOW w AS (PARTITION BY event_date ORDER BY event_time)": ["s"],
    "WITH a AS (SELECT event_date, amount FROM orders), b(d, m) AS (SELECT event_date, max(amount) FROM a GROUP BY 1) "
    "SELECT d, m FROM b": ["d", "m"],
    "WITH o AS (SELECT *, amount * 2 AS twice FROM clicks JOIN orders USING (user_id)) SELECT twice, page FROM o": [
        "twice",
        "page",
    ],
    "SELECT * FROM clicks": ["event_date", "event_time", "page", "user_id"],
    "SELECT * EXCEPT (page, event_time) FROM clicks": ["event_date", "user_id"],
    "SELECT c.*, o.name FROM orders o LEFT JOIN clicks c USING (user_id)": [
        "event_date",
        "event_time",
        "page",
        "user_id",
        "name",
    ],
    "SELECT event_date FROM orders o WHERE EXISTS (SELECT 1 FROM clicks c WHERE c.user_id = o.user_id)": ["event_date"],
    "SELECT event_date, (SELECT max(page) FROM clicks c WHERE c.user_id = orders.user_id) AS p FROM orders": [
        "event_date",
        "p",
    ],
    "SELECT event_date FROM orders LEFT ANTI JOIN clicks c ON orders.user_id = c.user_id": ["event_date"],
    "SELECT event_date FROM orders UNION ALL SELECT event_date FROM clicks ORDER BY event_date": ["event_date"],
    "SELECT id, event_date FROM orders CROSS JOIN range(10) AS r(id)": ["id", "event_date"],
    "SELECT v.a FROM orders JOIN VALUES (1, 'x') AS v(a, b) ON v.b = name": ["a"],
    "SELECT event_date, a FROM (SELECT event_date, name, amount FROM orders) "
    "PIVOT (sum(amount) FOR name IN ('a' AS a))": ["event_date", "a"],
    "SELECT event_date, extract(YEAR FROM event_time) AS y, timestampdiff(DAY, event_time, current_timestamp) AS d, "
    "dateadd(MONTH, 1, event_date) AS m, current_date AS t FROM orders": ["event_date", "y", "d", "m", "t"],
    "SELECT event_date, event_time - INTERVAL 1 DAY AS y FROM orders": ["event_date", "y"],
    "SELECT name, sum(amount) FILTER (WHERE name = 'a') AS s FROM orders GROUP BY ALL": ["name", "s"],
    "SELECT event_date, row_number() OVER (ORDER BY amount) AS r FROM orders QUALIFY r = 1": ["event_date", "r"],
    "SELECT window.start AS hour, count(*) AS n FROM orders GROUP BY window(event_time, '1 hour')": ["hour", "n"],
    "SELECT x.foo, bar FROM anything x": ["foo", "bar"],
    "SELECT * FROM anything": None,
    "SELECT stack(2, 'a', amount, 'b', amount) AS (k, v), event_date FROM orders": ["k", "v", "event_date"],
    "SELECT inline(items), event_date FROM orders": None,
    "SELECT /*+ BROADCAST(c) */ o.event_date FROM orders o JOIN clicks c ON o.user_id = c.user_id": ["event_date"],
    "SELECT l.page FROM orders JOIN LATERAL (SELECT page FROM clicks WHERE clicks.user_id = orders.user_id) AS l": [
        "page"
    ],
    "WITH RECURSIVE t(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT n FROM t": ["n"],
    "FROM orders SELECT event_date": ["event_date"],
    "SELECT n FROM (SELECT event_date, count(*) FROM orders GROUP BY 1) AS t(event_date, n)": ["n"],
    "SELECT CAST(event_time AS date), count(*) FROM orders GROUP BY 1": [],
    "SELECT event_date FROM orders;": ["event_date"],
}
#: Queries with names that are not there: the line, and what is said.
WRONG: dict[str, list[tuple[int, str]]] = {
    "SELECT event_date,\n  amout\nFROM orders": [(2, "there is no column 'amout' in orders; did you mean 'amount'?")],
    "SELECT o.amout FROM orders o": [(1, "o has no column 'amout'; did you mean 'amount'?")],
    "SELECT x.page FROM clicks c": [(1, "unknown table 'x' of column 'page'; known names: c")],
    "SELECT event_date orders": [(1, "there is no column 'event_date', since FROM is missing")],
    "WITH a AS (SELECT page FROM clicks) SELECT amount FROM a": [
        (1, "there is no column 'amount' in a; known names: page")
    ],
    "SELECT page FROM clicks UNION ALL SELECT pgae FROM clicks": [
        (1, "there is no column 'pgae' in clicks; did you mean 'page'?")
    ],
    "SELECT 1 FROM orders o WHERE EXISTS (SELECT 1 FROM clicks c WHERE c.user_id = o.usr_id\nAND pagee = 1)": [
        (1, "o has no column 'usr_id'; did you mean 'user_id'?"),
        (2, "there is no column 'pagee' in c; did you mean 'page'?"),
    ],
    "SELECT transform(items, x -> x.price + amout) AS t FROM orders": [
        (1, "there is no column 'amout' in orders; did you mean 'amount'?")
    ],
    "SELECT item FROM orders LATERAL VIEW explode(itms) t AS item": [
        (1, "there is no column 'itms' in orders; did you mean 'items'?")
    ],
    "SELECT page FROM clicks GROUP BY pages HAVING max(event_tim) > 1 ORDER BY pgae": [
        (1, "there is no column 'pages' in clicks; did you mean 'page'?"),
        (1, "there is no column 'event_tim' in clicks; did you mean 'event_time'?"),
        (1, "there is no column 'pgae' in clicks; did you mean 'page'?"),
    ],
}


@pytest.mark.parametrize("sql", RIGHT)
def test_valid_spark_sql_has_no_errors(sql: str) -> None:
    query = present(parse_query(sql))

    names = QueryNames(query, VIEWS)

    assert [table.sql() for table in names.unknown_tables()] == []
    assert [unknown.text for unknown in names.unknown_columns()] == []
    assert names.output_columns() == RIGHT[sql]


@pytest.mark.parametrize("sql", WRONG)
def test_unknown_columns_are_reported_with_the_closest_name(sql: str) -> None:
    query = present(parse_query(sql))

    unknown = [(name.line, name.text) for name in QueryNames(query, VIEWS).unknown_columns()]

    assert sorted(unknown) == sorted(WRONG[sql])


@pytest.mark.parametrize("sql", ["SELECT 1 FROM ordrs", "SELECT 1 FROM shop.orders", "SELECT 1 FROM a.b.orders"])
def test_unknown_tables_are_reported(sql: str) -> None:
    query = present(parse_query(sql))

    assert len(list(QueryNames(query, VIEWS).unknown_tables())) == 1


TWO_VIEWS = {"orders": ["event_date", "amount"], "clicks": None}
SQL = "SELECT event_date, sum(amount) AS amount FROM orders GROUP BY event_date"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were parsed."""
    names: list[str] = []
    read = query_errors.check_query

    def recorded(path: Path, *arguments: Any, **options: Any) -> Any:
        names.append(path.name)
        return read(path, *arguments, **options)

    monkeypatch.setattr(query_errors, "check_query", recorded)
    return names


def test_a_query_is_parsed_again_after_a_change_of_it_or_its_inputs() -> None:
    digest = query_digest(SQL, TWO_VIEWS)

    assert digest == query_digest(SQL, dict(TWO_VIEWS))
    others = [
        query_digest(f"{SQL} ", TWO_VIEWS),
        query_digest(SQL, TWO_VIEWS | {"orders": ["event_date"]}),
        query_digest(SQL, TWO_VIEWS | {"orders": ["amount", "event_date"]}),
        query_digest(SQL, {"orders": TWO_VIEWS["orders"]}),
    ]
    assert len({digest, *others}) == 5


def test_a_query_is_parsed_again_by_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = query_digest(SQL, TWO_VIEWS)
    for judges in ("another parser", ""):
        monkeypatch.setattr(sql_files, "_code_digest", lambda judges=judges: judges)

        assert query_digest(SQL, TWO_VIEWS) != digest


def test_the_queries_of_this_project_are_parsed_once(parsed: list[str], cache_folder: Path) -> None:
    first = check_project("local", root=PROJECT_ROOT)
    were_parsed = list(parsed)
    repeated = check_project("local", root=PROJECT_ROOT)

    assert first.errors == repeated.errors == []
    panels = [panel for spec in first.pipelines.values() for item in spec.dashboards for panel in item.panels]
    queries = sum(bool(panel.sql) for panel in panels) + sum(
        len(spec.gold.tables) + len(spec.views) + len(spec.rules) + len(spec.models)
        for spec in first.pipelines.values()
    )
    # Panels without SQL of their own may parse the query of their rule or view for their columns.
    assert queries <= len(were_parsed) <= queries + sum(not panel.sql for panel in panels)
    assert parsed == were_parsed
    assert {path.name for path in cache_folder.iterdir()} - {"valid_rules.json"} == {"valid_queries.json"}


def test_a_check_with_only_cached_queries_imports_no_parser() -> None:
    check_project("local", root=PROJECT_ROOT)
    program = (
        "import sys; from deltaworks.specs.checks.project import check_project; "
        "assert check_project('local').pipelines; print('sqlglot' in sys.modules)"
    )

    done = run_process([sys.executable, "-c", program], cwd=PROJECT_ROOT / "include", check=True)

    assert done.stdout.strip() == "False"


def test_cached_queries_persist_and_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "queries.json"
    for start in (0, MAX_QUERIES):
        queries = QueryCache(file)
        for number in range(start, start + MAX_QUERIES // 2 + 1):
            queries.put(str(number), ["a"] if number % 2 else None)
        queries.save()

    stored = QueryCache(file)

    assert "0" not in stored
    assert stored.get(str(MAX_QUERIES)) is None
    assert stored.get(str(MAX_QUERIES + 1)) == ["a"]
    assert len(json.loads(file.read_text())) == MAX_QUERIES


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a": 1}', '{"a": [1]}', "null"])
def test_a_corrupt_cache_file_is_ignored_and_replaced(tmp_path: Path, text: str) -> None:
    file = tmp_path / "queries.json"
    file.write_text(text)
    queries = QueryCache(file)
    assert "a" not in queries

    queries.put("b", ["x"])
    queries.save()

    assert QueryCache(file).get("b") == ["x"]


def test_without_a_cache_folder_every_query_is_checked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    queries = QueryCache(tmp_path / "file" / "queries.json")
    queries.put("a", ["x"])

    queries.save()

    assert "a" not in QueryCache(tmp_path / "file" / "queries.json")
