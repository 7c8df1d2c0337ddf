"""`as_of`: as-of joins of prices with facts, by precomputed intervals and by two other methods.

The data has 6,000 companies with facts and prices at random times; `events` is the number of prices, with one fact per
67 prices. Each method counts the joined rows and sums their values, and all methods must agree. DuckDB uses one thread.

- `intervals_vs_range_max`: an equality and range join with existing intervals, against a join of each price with all
  earlier facts that keeps the newest.
- `intervals_vs_native`: the same intervals, against DuckDB's `ASOF JOIN`, which needs no intervals.
- `intervals_built_vs_range_max`: as `intervals_vs_range_max`, but including the time to build the intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure

if TYPE_CHECKING:
    import duckdb

COMPANIES = 6_000
#: The same ratio of prices to facts as 4 million prices and 60,000 facts.
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


def run(options: Options) -> list[Result]:
    """Measures the three comparisons."""
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
        results = measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)
    if len(answers) != 1:
        raise AssertionError(f"the sides do not agree: {answers}")
    return results


def make_rows(connection: duckdb.DuckDBPyConnection, *, prices: int, facts: int) -> None:
    """Creates facts and prices at pseudo-random seconds. A company has at most one fact per second."""
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
    name="as_of",
    summary="as-of joins by intervals, against a range join and DuckDB's ASOF JOIN",
    run=run,
    tiny=TinySize(),
)
