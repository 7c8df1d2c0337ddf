"""Whether the SQL of a panel or a rule is bounded in time, and asks for nothing but the bounds.

Both are asked again and again: a question that grows with the table ends them one day.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from sqlglot import exp

from deltaworks.specs.checks.query_errors import parse_query
from deltaworks.specs.dashboards import PARAMETERS
from deltaworks.specs.spec_errors import SpecError, closest_match

_EXAMPLE = "write a condition such as event_time >= $from AND event_time < $to, or event_date >= $from::DATE"


def time_bound_errors(path: Path, sql: str) -> list[SpecError]:
    """What is wrong with the parameters of a query that can be parsed."""
    query = parse_query(sql, dialect="duckdb")
    if query is None:
        return []
    errors = list(_unknown_parameters(path, sql, query))
    if errors:
        return errors
    if not any(parameter.name == "from" for parameter in query.find_all(exp.Placeholder)):
        return [SpecError(path, 1, "", f"it reads all there is: it has no $from; {_EXAMPLE}")]
    if not any(_filters_rows(parameter) for parameter in query.find_all(exp.Placeholder)):
        line = _line(sql, "from")
        return [SpecError(path, line, "", f"$from leaves no row out: it is in no WHERE and no JOIN; {_EXAMPLE}")]
    return []


def _unknown_parameters(path: Path, sql: str, query: exp.Query) -> Iterator[SpecError]:
    names = dict.fromkeys(parameter.name for parameter in query.find_all(exp.Placeholder, exp.Parameter))
    for name in names:
        if name in PARAMETERS:
            continue
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            yield SpecError(path, _line(sql, name), "", "parameters have names here: $from and $to")
            continue
        nearest = closest_match(name, PARAMETERS)
        advice = f"did you mean ${nearest}?" if nearest is not None else "there are $from and $to"
        yield SpecError(path, _line(sql, name), "", f"there is no parameter ${name}; {advice}")


def _filters_rows(parameter: exp.Expression) -> bool:
    """Whether it is in what chooses rows. The WHERE of a FILTER chooses what one function sees of them."""
    if parameter.name != "from":
        return False
    where = parameter.find_ancestor(exp.Where)
    return isinstance(where.parent, exp.Select) if where is not None else parameter.find_ancestor(exp.Join) is not None


def _line(sql: str, name: str) -> int:
    """The line of a parameter, which the parser does not keep; 1 where it is not seen."""
    match = re.search(rf"[$?]{re.escape(name.strip('?'))}(?!\w)", sql)
    return 1 if match is None else sql.count("\n", 0, match.start()) + 1
