"""A rule is checked when the spec is read: against the columns, their types, and what a rule may touch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.project import load_catalog
from deltaworks.specs.rules import problem_of

COLUMNS = {
    "event_time": "timestamp",
    "event_date": "date",
    "amount": "decimal(12,2)",
    "level": "int",
    "name": "string",
    "tags": "map<string,int>",
    "items": "array<struct<sku: string, count: int>>",
    "data": "binary",
}


@pytest.mark.parametrize(
    "check",
    [
        "amount > 0",
        "amount > 0 -- what is free is no order",
        "level BETWEEN 1 AND 100 OR level IS NULL",
        "name ~ '^[a-z]+$'",
        "event_time >= TIMESTAMPTZ '2020-01-01' AND event_time::date = event_date",
        "len(items) < 100 AND items[1].count > 0",
        "coalesce(tags['gold'], 0) >= 0",
        "octet_length(data) < 10",
        "TRY_CAST(name AS INT) IS NOT NULL",
        "extract(year FROM event_time) > 2000",
    ],
)
def test_an_expression_over_the_columns_is_a_rule(check: str) -> None:
    assert problem_of(check, COLUMNS) is None


@pytest.mark.parametrize(
    ("check", "told"),
    [
        ("amont > 0", "no column 'amont' in this table; did you mean 'amount'?"),
        ("xyz > 0", "its columns are event_time"),
        ("amount", "not true or false"),
        ("amount >", "no SQL expression"),
        ("level = 'x'", "Could not convert"),
        ("no_such_function(level)", "no_such_function"),
        ("now() > event_time", "another answer every time"),
        ("current_date > event_date", "another answer every time"),
        ("random() > 0.5", "another answer every time"),
        ("level > (SELECT 1)", "no SELECT"),
        ("level IN (SELECT level FROM rows_)", "no SELECT"),
        ("count(*) > 1", "aggregates"),
        ("row_number() OVER () > 1", "window"),
        ("true) , (true", "one expression"),
        ("true) FROM t; DROP TABLE t; SELECT (true", "no SQL expression"),
        ("true) FROM range(5) AS r(x) WHERE (true", "no table"),
        ("level > $1", "parameters"),
    ],
)
def test_what_is_no_rule_is_told(check: str, told: str) -> None:
    assert told in str(problem_of(check, COLUMNS))


def test_a_wrong_rule_is_told_with_file_line_and_key(make_project: Callable[..., Path], pipeline_text: str) -> None:
    rules = """\
    rules:
      - {name: paid, check: "amount > 0"}
      - {name: known, check: "amout < 10"}
      - {name: paid, check: "true", on_fail: warn}
stream:
"""
    text = pipeline_text.replace("stream:\n", rules)
    line = text.splitlines().index('      - {name: known, check: "amout < 10"}') + 1

    with pytest.raises(ConfigError) as caught:
        load_catalog(root=make_project(pipeline=text))

    message = caught.value.message
    assert f"pipeline.yaml:{line}: tables.0.rules.1.check: rule 'known': no column 'amout'" in message
    assert "did you mean 'amount'?" in message
    assert f"pipeline.yaml:{line + 1}: tables.0.rules.2.name: rule 'paid' is declared twice" in message
