"""Runs a rule's SQL with DuckDB over the lake: one row per minute and label set.

With `min_samples`, a minute with too few samples is combined with the 4 minutes before it, then with the 14 before it.
Values are weighted by samples, which is exact for ratios of sums; percentiles are computed from the combined buckets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb

from deltaworks.control.foreign_errors import data_file_error
from deltaworks.errors import ContractError
from deltaworks.rules.evaluation import MinuteRows, minute_start
from deltaworks.rules.verdicts import Observation
from deltaworks.specs.alert_rule import AGGREGATION_MINUTES, BUCKET, MAX_LABEL_SETS, MINUTE, SAMPLES, VALUE
from deltaworks.specs.alert_rule import RuleSpec as Rule
from deltaworks.tables.duckdb_session import describe_error, parse_single_select, query_timeout

#: Timeout of a query. A query that takes longer raises RULE_BROKEN.
QUERY_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RuleQuery:
    """A rule's SQL, wrapped to produce observations."""

    rule: Rule
    text: str

    @property
    def lookback_steps(self) -> int:
        """The number of steps before a minute that its value may include."""
        return AGGREGATION_MINUTES[-1] - 1 if self.rule.min_samples is not None else 0

    def read_minutes(
        self,
        connection: duckdb.DuckDBPyConnection,
        first: int,
        last: int,
        *,
        timeout_seconds: float = QUERY_TIMEOUT_SECONDS,
    ) -> Iterator[MinuteRows]:
        """Yields every step of a range (inclusive, multiples of the step), including steps without rows.

        Raises:
            ContractError: RULE_BROKEN, the SQL fails, takes too long, or lacks a column.
        """
        steps = range(first, last + 1, self.rule.step_minutes)
        rows = iter(self._execute(connection, self._observations_sql(), first, last, timeout_seconds))
        row = next(rows, None)
        for minute in steps:
            observations, width = [], 0
            while row is not None and row[0] == minute:
                observations.append(Observation(tuple(row[1]), row[2], row[3], row[4] or 1))
                width = row[5]
                row = next(rows, None)
            yield MinuteRows(minute, observations, width)

    def insert_observations(
        self, connection: duckdb.DuckDBPyConnection, table: str, first: int, last: int, *, timeout_seconds: float
    ) -> None:
        """Inserts the values of a long range into a table of the connection: step, labels, value.

        Raises:
            ContractError: RULE_BROKEN, DATA_FILE_MISSING, DATA_FILE_UNREADABLE.
        """
        query = (
            f"INSERT INTO {table} SELECT step, labels, value FROM ({self._observations_sql()}) WHERE value IS NOT NULL"
        )
        self._execute(connection, query, first, last, timeout_seconds)

    def _execute(
        self, connection: duckdb.DuckDBPyConnection, query: str, first: int, last: int, timeout_seconds: float
    ) -> list[tuple[Any, ...]]:
        step = self.rule.step_minutes
        parameters = {
            "from": minute_start(first - self.lookback_steps * step),
            "to": minute_start(last + step),
            "first_step": first,
            "last_step": last,
        }
        try:
            with query_timeout(connection, timeout_seconds):
                return connection.execute(query, parameters).fetchall()
        except duckdb.InterruptException as error:
            raise broken_rule_error(self.rule, f"the query timed out after {timeout_seconds:.0f} s") from error
        except duckdb.Error as error:
            raise data_file_error(error) or broken_rule_error(self.rule, describe_error(error)) from error

    def _observations_sql(self) -> str:
        """Returns SQL for step, labels, value, samples, combined steps and width, ordered by step."""
        parts = self._parts_sql()
        body = self._percentiles_sql() if self.rule.percentile is not None else self._sums_sql()
        return f"""
            WITH parts AS MATERIALIZED ({parts}), valued AS ({body}), ranked AS (
              SELECT *, count(*) OVER (PARTITION BY step) AS width,
                row_number() OVER (PARTITION BY step ORDER BY samples DESC NULLS LAST, labels) AS place
              FROM valued WHERE step BETWEEN $first_step AND $last_step
            )
            SELECT step, labels, value, samples, steps, width FROM ranked
            WHERE place <= {MAX_LABEL_SETS} ORDER BY step, place"""

    def _parts_sql(self) -> str:
        """Returns SQL for the sums per step and label set, weighted by samples, or for its histogram buckets."""
        rule = self.rule
        labels = ", ".join(f'"{name}"::VARCHAR' for name in rule.labels)
        listed = f"[{labels}]" if rule.labels else "[]::VARCHAR[]"
        step = f'(epoch("{MINUTE}")::BIGINT // {60 * rule.step_minutes}) * {rule.step_minutes}'
        weight = f'coalesce("{SAMPLES}", 0)::DOUBLE' if rule.min_samples is not None else "1.0::DOUBLE"
        bounded = f'"{MINUTE}" >= $from AND "{MINUTE}" < $to'
        if rule.percentile is not None:
            columns, present = f'"{BUCKET}"::BIGINT AS bucket, sum({weight}) AS n', f'"{BUCKET}" IS NOT NULL'
        else:
            value = f'"{VALUE}"::DOUBLE'
            columns = f"sum({value} * {weight}) AS total, sum({weight}) AS n"
            present = f"isfinite({value})"
        return (
            f"SELECT {step} AS step, {listed} AS labels, {columns} FROM (\n{self.text}\n) AS answer "
            f"WHERE {bounded} AND {present} GROUP BY ALL"
        )

    def _sums_sql(self) -> str:
        samples, step = self.rule.min_samples, self.rule.step_minutes
        if samples is None:
            return "SELECT step, labels, total / n AS value, NULL::DOUBLE AS samples, 1 AS steps FROM parts"
        sums, cases, counts, used = [], [], [], []
        for steps in AGGREGATION_MINUTES:
            span = f"RANGE BETWEEN {(steps - 1) * step} PRECEDING AND CURRENT ROW"
            window = f"OVER (PARTITION BY labels ORDER BY step {span})"
            sums.append(f"sum(total) {window} AS total_{steps}, sum(n) {window} AS n_{steps}")
            cases.append(f"WHEN n_{steps} >= {samples} THEN total_{steps} / n_{steps}")
            counts.append(f"WHEN n_{steps} >= {samples} THEN n_{steps}")
            used.append(f"WHEN n_{steps} >= {samples} THEN {steps}")
        last = AGGREGATION_MINUTES[-1]
        return (
            f"SELECT step, labels, CASE {' '.join(cases)} END AS value, "
            f"CASE {' '.join(counts)} ELSE n_{last} END AS samples, CASE {' '.join(used)} ELSE {last} END AS steps "
            f"FROM (SELECT step, labels, {', '.join(sums)} FROM parts)"
        )

    def _percentiles_sql(self) -> str:
        samples, step, share = self.rule.min_samples, self.rule.step_minutes, self.rule.percentile
        windows = ", ".join(f"({steps})" for steps in AGGREGATION_MINUTES)
        last = AGGREGATION_MINUTES[-1]
        return f"""
            WITH there AS (SELECT DISTINCT step, labels FROM parts), together AS (
              SELECT there.step, there.labels, steps, bucket, sum(n) AS n
              FROM there CROSS JOIN (VALUES {windows}) AS windows(steps) JOIN parts
                ON parts.labels = there.labels AND parts.step > there.step - steps * {step} AND parts.step <= there.step
              GROUP BY ALL
            ), upto AS (
              SELECT *, sum(n) OVER (PARTITION BY step, labels, steps ORDER BY bucket) AS so_far,
                sum(n) OVER (PARTITION BY step, labels, steps) AS samples
              FROM together
            ), each_window AS (
              SELECT step, labels, steps, any_value(samples) AS samples,
                10 ** ((min(bucket) FILTER (WHERE so_far >= {share} * samples) + 0.5) / 100) AS value
              FROM upto GROUP BY step, labels, steps
            )
            SELECT step, labels, CASE WHEN samples >= {samples} THEN value END AS value, samples, steps FROM each_window
            QUALIFY row_number() OVER (
              PARTITION BY step, labels
              ORDER BY CASE WHEN samples >= {samples} THEN steps ELSE {last + 1} - steps / 100 END
            ) = 1"""


def rule_query(rule: Rule, text: str, connection: duckdb.DuckDBPyConnection) -> RuleQuery:
    """Parses a rule's SQL file.

    Raises:
        ContractError: RULE_BROKEN, it is not a single SELECT.
    """
    try:
        query, _ = parse_single_select(connection, text)
    except duckdb.Error as error:
        raise broken_rule_error(rule, describe_error(error)) from error
    return RuleQuery(rule, query)


def broken_rule_error(rule: Rule, problem: str) -> ContractError:
    """Returns the error of a rule whose SQL fails."""
    return ContractError(
        "RULE_BROKEN",
        f"Rule {rule.name!r} cannot be evaluated: {rule.sql}: {problem}.",
        hint="Fix the SQL; pending minutes are evaluated afterwards.",
    )
