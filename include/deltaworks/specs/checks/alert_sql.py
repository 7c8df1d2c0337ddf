"""SQL of rules as declared: whether DuckDB could read it, whether it is bounded and says the same whenever it is asked,
and whether its answer has what the rule needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from deltaworks.specs.base import Place
from deltaworks.specs.business_alert import BUCKET, MINUTE, SAMPLES, VALUE, BusinessAlertSpec
from deltaworks.specs.checks.sound_queries import Columns, SoundQueries
from deltaworks.specs.checks.sql_files import read_sql_file
from deltaworks.specs.declared_mistakes import Declared
from deltaworks.specs.mistakes import Mistake, meant
from deltaworks.specs.pipeline import PipelineSpec


def alert_mistakes(
    spec: PipelineSpec, declared: Declared, columns: Mapping[str, Columns], sound: SoundQueries
) -> Iterator[Mistake]:
    """Everything that is wrong with the SQL of rules, and with what rules say of its answers.

    Args:
        columns: of the tables and views of the pipeline; those it lacks may have any.
    """
    for index, alert in enumerate(spec.alerts):
        path = declared.path.parent / alert.sql
        if not path.is_file():
            continue
        tables = {name: columns.get(name) for name in alert.reads}
        answer, mistakes = read_sql_file(path, tables, spec, sound, purpose="alert")
        yield from mistakes
        if answer is not None and not mistakes:
            for place, text in _column_problems(alert, answer):
                yield declared.mistake(("alerts", index, *place), text)


def needed_columns(alert: BusinessAlertSpec) -> Iterator[tuple[Place, str]]:
    """The columns that a rule's answer must have, each with the key that asks for it."""
    yield ("sql",), MINUTE
    for position, label in enumerate(alert.labels):
        yield ("labels", position), label
    yield (("sql",), VALUE) if alert.percentile is None else (("percentile",), BUCKET)
    if alert.samples is not None:
        yield ("samples",), SAMPLES


def _column_problems(alert: BusinessAlertSpec, answer: Sequence[str]) -> Iterator[tuple[Place, str]]:
    for place, name in needed_columns(alert):
        if name not in answer:
            nearest = meant(name, answer)
            advice = f"did you mean {nearest!r}?" if nearest is not None else f"its columns are {', '.join(answer)}"
            yield place, f"the answer of {alert.sql} has no column {name!r}; {advice}"


def changing_mistakes(path: Path, sql: str) -> list[Mistake]:
    """Where a query that can be parsed asks a clock or chance: a backtest would see something else than people did."""
    from sqlglot import exp

    from deltaworks.specs.checks.query_mistakes import parsed_query

    query = parsed_query(sql, dialect="duckdb")
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
    mistakes: dict[int, Mistake] = {}
    for name in sorted(names & _CHANGING):
        instead = "write $to instead" if name not in _CHANCE else "leave it out"
        text = f"{name} says something else each time it is asked, and a rule must not; {instead}"
        mistakes.setdefault(_line(sql, name), Mistake(path, _line(sql, name), "", text))
    return list(mistakes.values())


_CHANCE = frozenset({"rand", "random", "uuid", "gen_random_uuid", "uuidv4", "uuidv7", "setseed", "sample"})
_CHANGING = _CHANCE | {
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
#: What DuckDB takes for the same as what the parser calls it.
_WRITTEN: Mapping[str, str] = {
    "current_timestamp": r"current_timestamp|now\s*\(",
    "current_date": r"current_date|today\s*\(",
    "rand": r"random|rand",
}


def _line(sql: str, name: str) -> int:
    match = re.search(rf"\b(?:{_WRITTEN.get(name, name)})", sql, re.IGNORECASE)
    return 1 if match is None else sql.count("\n", 0, match.start()) + 1
