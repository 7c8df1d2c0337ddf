"""Checks that the SQL of a panel or rule is bounded in time, and has no other parameters.

Both run repeatedly: an unbounded query would become slower with the table until it fails.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from sqlglot import exp

from deltaworks.specs.checks.query_errors import parse_query
from deltaworks.specs.dashboards import PARAMETERS
from deltaworks.specs.spec_errors import SpecError, closest_match

_EXAMPLE = "write a condition such as event_time >= $from AND event_time < $to, or event_date >= $from::DATE"


def time_bound_errors(path: Path, sql: str, filters: Collection[str] = ()) -> list[SpecError]:
    """Returns the errors of a valid query in which `$from` filters no rows, or which has other parameters.

    Args:
        filters: names of the dashboard's filters, which are parameters too.
    """
    query = parse_query(sql, dialect="duckdb")
    if query is None:
        return []
    errors = list(_unknown_parameters(path, sql, query, (*PARAMETERS, *filters)))
    if errors:
        return errors
    if not any(parameter.name == "from" for parameter in query.find_all(exp.Placeholder)):
        return [SpecError(path, 1, "", f"it reads the complete table: it has no $from; {_EXAMPLE}")]
    if not any(_filters_rows(parameter) for parameter in query.find_all(exp.Placeholder)):
        line = _line(sql, "from")
        return [SpecError(path, line, "", f"$from filters no rows: it is in no WHERE and no JOIN; {_EXAMPLE}")]
    return []


def _unknown_parameters(path: Path, sql: str, query: exp.Query, parameters: Sequence[str]) -> Iterator[SpecError]:
    names = dict.fromkeys(parameter.name for parameter in query.find_all(exp.Placeholder, exp.Parameter))
    for name in names:
        if name in parameters:
            continue
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            text = f"only the named parameters {_listed(parameters)} are supported"
            yield SpecError(path, _line(sql, name), "", text)
            continue
        nearest = closest_match(name, parameters)
        advice = f"did you mean ${nearest}?" if nearest is not None else f"known parameters: {_listed(parameters)}"
        yield SpecError(path, _line(sql, name), "", f"there is no parameter ${name}; {advice}")


def _listed(names: Sequence[str]) -> str:
    *first, last = (f"${name}" for name in names)
    return f"{', '.join(first)} and {last}"


def _filters_rows(parameter: exp.Expression) -> bool:
    """Returns whether a parameter is used in WHERE or JOIN and so filters rows. FILTER only restricts one aggregate."""
    if parameter.name != "from":
        return False
    where = parameter.find_ancestor(exp.Where)
    return isinstance(where.parent, exp.Select) if where is not None else parameter.find_ancestor(exp.Join) is not None


def _line(sql: str, name: str) -> int:
    """Returns the line of a parameter, which the parser does not record; 1 if it is not found."""
    match = re.search(rf"[$?]{re.escape(name.strip('?'))}(?!\w)", sql)
    return 1 if match is None else sql.count("\n", 0, match.start()) + 1
