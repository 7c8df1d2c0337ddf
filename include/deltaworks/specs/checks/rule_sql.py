"""Checks the SQL of rules: syntax, time bounds, determinism and result columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from deltaworks.specs.alert_rule import BUCKET, MINUTE, SAMPLES, VALUE, RuleSpec
from deltaworks.specs.base import KeyPath
from deltaworks.specs.checks.sql_files import Columns, QueryCache, read_sql_file
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.spec_errors import SpecError, closest_match
from deltaworks.specs.validation_errors import Declaration


def rule_errors(
    spec: PipelineSpec, declaration: Declaration, columns: Mapping[str, Columns], cache: QueryCache
) -> Iterator[SpecError]:
    """Yields all errors in the SQL of rules and in the result columns that rules need.

    Args:
        columns: columns by table or view; a table without an entry has unknown columns.
    """
    for index, rule in enumerate(spec.rules):
        path = declaration.path.parent / rule.sql
        if not path.is_file():
            continue
        tables = {name: columns.get(name) for name in rule.reads}
        output_columns, errors = read_sql_file(path, tables, spec, cache, purpose="rule")
        yield from errors
        if output_columns is not None and not errors:
            for key_path, text in _column_problems(rule, output_columns):
                yield declaration.error_at(("rules", index, *key_path), text)


def required_columns(rule: RuleSpec) -> Iterator[tuple[KeyPath, str]]:
    """Yields the result columns that a rule needs, each with the key that requires it."""
    yield ("sql",), MINUTE
    for position, label in enumerate(rule.labels):
        yield ("labels", position), label
    yield (("sql",), VALUE) if rule.percentile is None else (("percentile",), BUCKET)
    if rule.min_samples is not None:
        yield ("samples",), SAMPLES


def _column_problems(rule: RuleSpec, output_columns: Sequence[str]) -> Iterator[tuple[KeyPath, str]]:
    for key_path, name in required_columns(rule):
        if name not in output_columns:
            nearest = closest_match(name, output_columns)
            advice = (
                f"did you mean {nearest!r}?" if nearest is not None else f"its columns are {', '.join(output_columns)}"
            )
            yield key_path, f"the result of {rule.sql} has no column {name!r}; {advice}"
