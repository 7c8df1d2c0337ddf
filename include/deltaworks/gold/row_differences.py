"""Counts the rows by which two relations with the same columns differ, in DuckDB's dialect and in Spark's.

Rows are compared as multisets. Floating-point numbers are compared to nine digits, because their sums depend on the
order of rows. Two numbers that differ in the last bit may lie on both sides of a rounding boundary, so a difference
counts only if it also exists after the numbers were multiplied by a factor, which moves the boundaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from deltalake import DeltaTable

from deltaworks.tables.lake import Lake, duckdb_source

#: Names of the two relations in the generated SQL.
CURRENT: Final = "current_rows"
REBUILT: Final = "rebuilt_rows"
#: Factors of floating-point numbers. A difference must exist for both.
_FACTORS: Final = (1.0, 1.2345678)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What the SQL of a comparison needs of an engine: the quote of names, the type of text, and nine digits."""

    quote: str
    text: str
    nine_digits: str

    def name(self, column: str) -> str:
        """Returns a quoted column name."""
        return f"{self.quote}{column.replace(self.quote, 2 * self.quote)}{self.quote}"


DUCKDB: Final = Dialect(quote='"', text="VARCHAR", nine_digits="format('{{:.8e}}', {0})")
SPARK: Final = Dialect(quote="`", text="STRING", nine_digits="format_string('%.8e', {0})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowComparison:
    """How `CURRENT` and `REBUILT` are compared.

    - `columns`: their columns with types, in the engine's spelling.
    - `by`: an SQL expression; differing rows are counted by its value.
    - `excluded`: a condition of rows that are not compared.
    - `is_exact`: compare all digits of floating-point numbers.
    """

    columns: Mapping[str, str]
    by: str
    dialect: Dialect
    excluded: str = "false"
    is_exact: bool = False

    def count(self, run: Callable[[str], Iterable[Any]]) -> dict[str | None, int]:
        """Returns the number of differing rows by value; values without any are omitted.

        Args:
            run: runs SQL and returns its rows of a text and a number.
        """
        counted = {value: int(rows) for value, rows in run(self._sql(_FACTORS[0]))}
        if not counted or not self._floating:
            return counted
        again = {value: int(rows) for value, rows in run(self._sql(_FACTORS[1]))}
        return {value: min(rows, again[value]) for value, rows in counted.items() if value in again}

    @property
    def _floating(self) -> frozenset[str]:
        if self.is_exact:
            return frozenset()
        return frozenset(name for name, kind in self.columns.items() if kind.strip('"') in ("double", "float"))

    def _sql(self, factor: float) -> str:
        columns = ", ".join(self._column(name, factor) for name in self.columns)
        names = ", ".join(map(self.dialect.name, self.columns))
        current, rebuilt = (
            f"SELECT CAST({self.by} AS {self.dialect.text}) AS _by, {columns}, {side} AS _side FROM {name} "
            f"WHERE NOT coalesce({self.excluded}, false)"
            for name, side in ((CURRENT, 1), (REBUILT, -1))
        )
        # Each side is read once, unlike by EXCEPT ALL in both directions.
        return (
            f"SELECT _by, sum(abs(_rows)) FROM (SELECT _by, sum(_side) AS _rows FROM ({current} UNION ALL {rebuilt}) "
            f"AS sides GROUP BY _by, {names} HAVING sum(_side) <> 0) AS differing GROUP BY _by"
        )

    def _column(self, name: str, factor: float) -> str:
        quoted = self.dialect.name(name)
        if name not in self._floating:
            return quoted
        # Adding zero makes -0.0 equal to 0.0.
        return (
            f"{self.dialect.nine_digits.format(f'CAST({quoted} AS DOUBLE) * CAST({factor} AS DOUBLE) + 0')} AS {quoted}"
        )


def count_differing_rows(
    lake: Lake, current: DeltaTable, rebuilt: DeltaTable, *, by: str, excluded: str = "false", is_exact: bool = False
) -> dict[str | None, int] | None:
    """Returns the number of rows that one of two opened tables has and the other has not, as `RowComparison.count`.

    Reads all rows of both with DuckDB. Returns None if their columns differ.

    Raises:
        DeltaError, OSError, duckdb.Error: a version can no longer be read.
    """
    # Imported here: few builds compare rows.
    from deltaworks.tables.duckdb_session import duckdb_session

    fields = [{field.name: _type_name(field.type) for field in table.schema().fields} for table in (current, rebuilt)]
    if list(fields[0].items()) != list(fields[1].items()):
        return None
    comparison = RowComparison(columns=fields[0], by=by, dialect=DUCKDB, excluded=excluded, is_exact=is_exact)
    with duckdb_session() as session:
        session.execute("SET TimeZone = 'UTC'").fetchall()
        session.register(CURRENT, duckdb_source(lake, current))
        session.register(REBUILT, duckdb_source(lake, rebuilt))
        return comparison.count(lambda sql: session.execute(sql).fetchall())


def _type_name(declared: Any) -> str:
    """Returns the name of a type of the Delta protocol, such as `double`; its description for nested types."""
    return str(getattr(declared, "type", declared))
