"""Table rules are validated when the spec is read: columns, types and forbidden constructs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs import table
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.project import load_catalog
from deltaworks.specs.table import table_rule_problem
from tests.processes import run_process

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
    assert table_rule_problem(check, COLUMNS) is None


@pytest.mark.parametrize(
    ("check", "expected_text"),
    [
        ("amont > 0", "no column 'amont' in this table; did you mean 'amount'?"),
        ("xyz > 0", "its columns are event_time"),
        ("amount", "not boolean"),
        ("amount >", "invalid SQL expression"),
        ("level = 'x'", "Could not convert"),
        ("no_such_function(level)", "no_such_function"),
        ("now() > event_time", "() is nondeterministic"),
        ("current_date > event_date", "() is nondeterministic"),
        ("random() > 0.5", "() is nondeterministic"),
        ("level > (SELECT 1)", "remove the SELECT"),
        ("level IN (SELECT level FROM rows_)", "remove the SELECT"),
        ("count(*) > 1", "aggregates"),
        ("row_number() OVER () > 1", "window"),
        ("true) , (true", "one expression"),
        ("true) FROM t; DROP TABLE t; SELECT (true", "invalid SQL expression"),
        ("true) FROM range(5) AS r(x) WHERE (true", "not a table"),
        ("level > $1", "parameters"),
    ],
)
def test_invalid_rules_are_rejected(check: str, expected_text: str) -> None:
    assert expected_text in str(table_rule_problem(check, COLUMNS))


def test_an_invalid_rule_has_file_line_and_key(make_project: Callable[..., Path], pipeline_text: str) -> None:
    declared = """\
    rules:
      - {name: paid, check: "amount > 0"}
      - {name: known, check: "amout < 10"}
      - {name: paid, check: "true", on_fail: warn}
stream:
"""
    text = pipeline_text.replace("stream:\n", declared)
    line = text.splitlines().index('      - {name: known, check: "amout < 10"}') + 1

    with pytest.raises(ConfigError) as caught:
        load_catalog(root=make_project(pipeline=text))

    message = caught.value.message
    assert f"pipeline.yaml:{line}: tables.0.rules.1.check: rule 'known': no column 'amout'" in message
    assert "did you mean 'amount'?" in message
    assert f"pipeline.yaml:{line + 1}: tables.0.rules.2.name: rule 'paid' is declared twice" in message


def test_a_valid_rule_is_cached_until_its_columns_or_the_code_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    judged: list[str] = []
    judge = table._validate

    def counted(check: str, columns: tuple[tuple[str, str], ...]) -> str | None:
        judged.append(check)
        return judge(check, columns)

    monkeypatch.setattr(table, "_validate", counted)

    def problem_in_a_new_process(columns: dict[str, str] = COLUMNS) -> str | None:
        table._cached_problem.cache_clear()
        table._rule_cache.cache_clear()
        return table_rule_problem("level > 0", columns)

    assert [problem_in_a_new_process() for _ in range(3)] == [None] * 3
    assert len(judged) == 1

    assert "Cannot compare" in str(problem_in_a_new_process(COLUMNS | {"level": "array<int>"}))
    assert len(judged) == 2

    monkeypatch.setattr(table, "code_digest", lambda libraries, files: "another DuckDB")
    assert problem_in_a_new_process() is None
    assert len(judged) == 3

    monkeypatch.setattr(table, "code_digest", lambda libraries, files: "")
    assert [problem_in_a_new_process() for _ in range(2)] == [None] * 2
    assert len(judged) == 5


def test_an_invalid_rule_is_never_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    for _ in range(2):
        table._cached_problem.cache_clear()
        assert "not boolean" in str(table_rule_problem("amount + 1", COLUMNS))

    assert list(tmp_path.rglob("*.json")) == []


def test_specs_with_cached_rules_are_read_without_duckdb(
    make_project: Callable[..., Path], pipeline_text: str, tmp_path: Path
) -> None:
    text = pipeline_text.replace("stream:\n", '    rules: [{name: paid, check: "amount > 0"}]\nstream:\n')
    root = make_project(pipeline=text)
    program = (
        "import sys, pathlib; from deltaworks.specs.project import load_catalog; "
        f"load_catalog('local', root=pathlib.Path({str(root)!r})); print('duckdb' in sys.modules)"
    )
    variables = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(PROJECT_ROOT / "include")}

    messages = [run_process([sys.executable, "-c", program], env=variables, check=True).stdout for _ in range(2)]

    assert [line.strip() for line in messages] == ["True", "False"]
