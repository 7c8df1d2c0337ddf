"""Checks rows against their table's rules: one DuckDB query per chunk over its Arrow columns.

DuckDB reads the columns without a copy. If a rule cannot be evaluated for a row (for example a failed cast), the rule
fails for that row only.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.control.error_redaction import redact_values
from deltaworks.errors import ContractError
from deltaworks.specs.table import TableRuleSpec, TableSpec, open_duckdb, select_item

_ROWS = "rows_"


class RuleEngine:
    """The DuckDB connection that all tables of a task share. Opened on first use, because opening takes 20 ms."""

    def __init__(self) -> None:
        self._connection: duckdb.DuckDBPyConnection | None = None

    def evaluate(self, rows: pa.Table, expressions: Sequence[str]) -> list[pa.ChunkedArray]:
        """Evaluates each expression for every row. Results are in row order.

        Raises:
            duckdb.Error: an expression cannot be evaluated for some row.
        """
        if self._connection is None:
            self._connection = open_duckdb()
        connection = self._connection
        connection.register(_ROWS, rows)
        try:
            items = ", ".join(f"{expression} AS v{index}" for index, expression in enumerate(expressions))
            # DuckDB preserves the row order of a projection.
            answer = connection.sql(f"SELECT {items} FROM {_ROWS}").to_arrow_table()
        finally:
            connection.unregister(_ROWS)
        return list(answer.columns)


class RuleChecker:
    """Checks the rules of one table. Not thread-safe."""

    def __init__(self, table: TableSpec, engine: RuleEngine) -> None:
        self.rules = table.rules
        self._table = table.name
        self._engine = engine

    def failed_rows(self, rows: pa.Table) -> list[tuple[TableRuleSpec, list[int]]]:
        """Returns each failed rule with the indexes of its failing rows.

        Raises:
            ContractError: RULE_UNUSABLE, a rule cannot be evaluated for any row.
        """
        if not self.rules or not rows.num_rows:
            return []
        try:
            results = self._engine.evaluate(
                rows, [f"CAST({select_item(rule.check)} AS BOOLEAN)" for rule in self.rules]
            )
        except duckdb.Error:
            results = [self._evaluate_leniently(rows, rule) for rule in self.rules]
        failures = []
        for rule, result in zip(self.rules, results, strict=True):
            # A null result passes, as in a SQL CHECK constraint.
            indexes = pc.indices_nonzero(pc.invert(result).fill_null(False)).to_pylist()
            if indexes:
                failures.append((rule, indexes))
        return failures

    def _evaluate_leniently(self, rows: pa.Table, rule: TableRuleSpec) -> pa.ChunkedArray:
        """Evaluates one rule, so that rows for which it cannot be evaluated fail instead of raising."""
        lenient_check = f"TRY(coalesce(CAST({select_item(rule.check)} AS BOOLEAN), true))"
        try:
            (result,) = self._engine.evaluate(rows, [f"coalesce({lenient_check}, false)"])
        except duckdb.Error as error:
            raise ContractError(
                "RULE_UNUSABLE",
                f"Rule {rule.name!r} of table {self._table!r} cannot be evaluated: {redact_values(str(error))}",
            ) from None
        return result


def rule_failed_error(table: str, rule: TableRuleSpec, *, seq: int, position: int) -> ContractError:
    """Returns the error that stops the stream if a rule with `on_fail: fail` fails."""
    return ContractError(
        "RULE_FAILED", f"Event {position} of file event {seq} fails rule {rule.name!r} of table {table!r}: {rule.check}"
    )
