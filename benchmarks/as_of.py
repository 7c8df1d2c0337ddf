"""`as_of`: prices joined with what was known then, by intervals and in the two other ways there are.

6,000 companies, each with facts at scattered moments, and prices of all of them, at scattered moments too. Every
side counts its rows and sums what it has joined, and the sums have to be equal.

- `intervals_vs_range_max`: DuckDB, an equality and a range over intervals that are there, against a join of each price
  with all facts that were known and the newest of these.
- `intervals_vs_native`: DuckDB, the same intervals against its `ASOF JOIN`, which needs none.
- `intervals_built_vs_range_max`: the same as the first, and the intervals are built before.

`events` is the number of prices; facts are one for 67 of them. One thread each, so that neither gains by cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Clock, Comparison, Figure, Options, Side, measure

if TYPE_CHECKING:
    import duckdb

COMPANIES = 6_000
#: As many prices for a fact as 4 M prices have of 60 k facts.
_PRICES_PER_FACT = 67
_SECONDS = 10 * 365 * 86_400
_INTERVALS = """
    CREATE OR REPLACE TABLE intervals AS
    SELECT company, known_from, lead(known_from) OVER (PARTITION BY company ORDER BY known_from) AS known_to, value
    FROM facts
"""
_BY_INTERVALS = """
    SELECT count(i.value), sum(i.value) FROM prices p JOIN intervals i
    ON p.company = i.company AND p.at >= i.known_from AND p.at < coalesce(i.known_to, 9999999999)
"""
_BY_MAXIMUM = """
    SELECT count(value), sum(value) FROM (
        SELECT p.id, arg_max(f.value, f.known_from) AS value
        FROM prices p JOIN facts f ON p.company = f.company AND f.known_from <= p.at GROUP BY p.id
    )
"""
_NATIVE = """
    SELECT count(f.value), sum(f.value) FROM prices p ASOF JOIN facts f
    ON p.company = f.company AND p.at >= f.known_from
"""


def run(options: Options) -> list[Figure]:
    """Measure the comparisons."""
    import duckdb

    prices = options.events
    facts = max(COMPANIES, prices // _PRICES_PER_FACT)
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET threads = 1")
        make_rows(connection, prices=prices, facts=facts)
        connection.execute(_INTERVALS)
        answers: set[tuple[object, ...]] = set()
        intervals = Side("intervals", _measure_queries(connection, _BY_INTERVALS, answers))
        built = Side("intervals_built", _measure_queries(connection, _BY_INTERVALS, answers, before=_INTERVALS))
        maximum = Side("range_join_and_max", _measure_queries(connection, _BY_MAXIMUM, answers))
        native = Side("native_asof", _measure_queries(connection, _NATIVE, answers))
        sizes = {"prices": prices, "facts": facts, "companies": COMPANIES}
        comparisons = [
            Comparison(metric="intervals_vs_range_max", ours=intervals, other=maximum, sizes=sizes),
            Comparison(metric="intervals_vs_native", ours=intervals, other=native, sizes=sizes),
            Comparison(metric="intervals_built_vs_range_max", ours=built, other=maximum, sizes=sizes),
        ]
        figures = measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)
    if len(answers) != 1:
        raise AssertionError(f"the sides do not agree: {answers}")
    return figures


def make_rows(connection: duckdb.DuckDBPyConnection, *, prices: int, facts: int) -> None:
    """Facts and prices of companies at seconds that hashes choose; of one company no two facts are of one second."""
    for name, rows, time in (("facts", facts, "known_from"), ("prices", prices, "at")):
        connection.execute(
            f"""
            CREATE TABLE {name} AS
            SELECT i AS id, (hash(i, '{name} of') % {COMPANIES})::INT AS company,
                (hash(i, '{name} at') % {_SECONDS})::BIGINT AS {time}, i % 1000 AS value
            FROM range({rows}) t(i)
            """
        )
    connection.execute(
        """
        DELETE FROM facts USING facts other
        WHERE facts.company = other.company AND facts.known_from = other.known_from AND facts.id > other.id
        """
    )


def _measure_queries(
    connection: duckdb.DuckDBPyConnection, sql: str, answers: set[tuple[object, ...]], *, before: str = ""
) -> Callable[[Clock], None]:
    def run_side(clock: Clock) -> None:
        with clock:
            if before:
                connection.execute(before)
            answers.add(connection.execute(sql).fetchall()[0])

    return run_side


BENCHMARK = Benchmark(
    name="as_of", summary="joins with what was known then: intervals against a range join and DuckDB's own", run=run
)
