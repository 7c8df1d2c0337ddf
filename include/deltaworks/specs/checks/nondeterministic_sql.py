"""Checks that a rule's query is deterministic; otherwise a backtest would differ from the live evaluation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sqlglot import exp

from deltaworks.specs.checks.query_errors import parse_query
from deltaworks.specs.spec_errors import SpecError

_RANDOM_FUNCTIONS = frozenset({"rand", "random", "uuid", "gen_random_uuid", "uuidv4", "uuidv7", "setseed", "sample"})
_VOLATILE_FUNCTIONS = _RANDOM_FUNCTIONS | {
    "now",
    "today",
    "current_timestamp",
    "current_date",
    "current_time",
    "current_datetime",
    "localtime",
    "localtimestamp",
    "get_current_time",
    "get_current_timestamp",
    "transaction_timestamp",
}
#: DuckDB's spellings of functions, by the parser's names.
_DUCKDB_SPELLINGS: Mapping[str, str] = {
    "current_timestamp": r"current_timestamp|now\s*\(",
    "current_date": r"current_date|today\s*\(",
    "rand": r"random|rand",
}


def nondeterminism_errors(path: Path, sql: str) -> list[SpecError]:
    """Returns an error for each clock or random function in a valid query."""
    query = parse_query(sql, dialect="duckdb")
    if query is None:
        return []
    names: set[str] = set()
    for node in query.walk():
        if isinstance(node, exp.TableSample):
            names.add("sample")
        elif isinstance(node, exp.Anonymous):
            names.add(str(node.this).lower())
        elif isinstance(node, exp.Func):
            names |= {str(name).lower() for name in node.sql_names()}
    errors: dict[int, SpecError] = {}
    for name in sorted(names & _VOLATILE_FUNCTIONS):
        advice = "write $to instead" if name not in _RANDOM_FUNCTIONS else "remove it"
        text = f"{name} is nondeterministic, and rules must be deterministic; {advice}"
        errors.setdefault(_line(sql, name), SpecError(path, _line(sql, name), "", text))
    return list(errors.values())


def _line(sql: str, name: str) -> int:
    match = re.search(rf"\b(?:{_DUCKDB_SPELLINGS.get(name, name)})", sql, re.IGNORECASE)
    return 1 if match is None else sql.count("\n", 0, match.start()) + 1
