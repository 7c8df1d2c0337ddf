"""Valid queries are cached; all others are parsed again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.checks import query_errors, sql_files
from deltaworks.specs.checks.project import check_project
from deltaworks.specs.checks.sql_files import MAX_QUERIES, QueryCache, query_digest
from tests.processes import run_process

VIEWS = {"orders": ["event_date", "amount"], "clicks": None}
SQL = "SELECT event_date, sum(amount) AS amount FROM orders GROUP BY event_date"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were parsed."""
    names: list[str] = []
    read = query_errors.check_query

    def recorded(path: Path, *arguments: Any, **options: Any) -> Any:
        names.append(path.name)
        return read(path, *arguments, **options)

    monkeypatch.setattr(query_errors, "check_query", recorded)
    return names


def test_a_query_is_parsed_again_after_a_change_of_it_or_its_inputs() -> None:
    digest = query_digest(SQL, VIEWS)

    assert digest == query_digest(SQL, dict(VIEWS))
    others = [
        query_digest(f"{SQL} ", VIEWS),
        query_digest(SQL, VIEWS | {"orders": ["event_date"]}),
        query_digest(SQL, VIEWS | {"orders": ["amount", "event_date"]}),
        query_digest(SQL, {"orders": VIEWS["orders"]}),
    ]
    assert len({digest, *others}) == 5


def test_a_query_is_parsed_again_by_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = query_digest(SQL, VIEWS)
    for judges in ("another parser", ""):
        monkeypatch.setattr(sql_files, "_code_digest", lambda judges=judges: judges)

        assert query_digest(SQL, VIEWS) != digest


def test_the_queries_of_this_project_are_parsed_once(parsed: list[str], cache_folder: Path) -> None:
    first = check_project("local", root=PROJECT_ROOT)
    were_parsed = list(parsed)
    repeated = check_project("local", root=PROJECT_ROOT)

    assert first.errors == repeated.errors == []
    panels = [panel for spec in first.pipelines.values() for item in spec.dashboards for panel in item.panels]
    queries = len(panels) + sum(
        len(spec.gold.tables) + len(spec.views) + len(spec.rules) + len(spec.models)
        for spec in first.pipelines.values()
    )
    assert len(were_parsed) == queries
    assert parsed == were_parsed
    assert {path.name for path in cache_folder.iterdir()} - {"valid_rules.json"} == {"valid_queries.json"}


def test_a_check_with_only_cached_queries_imports_no_parser() -> None:
    check_project("local", root=PROJECT_ROOT)
    program = (
        "import sys; from deltaworks.specs.checks.project import check_project; "
        "assert check_project('local').pipelines; print('sqlglot' in sys.modules)"
    )

    done = run_process([sys.executable, "-c", program], cwd=PROJECT_ROOT / "include", check=True)

    assert done.stdout.strip() == "False"


def test_cached_queries_persist_and_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "queries.json"
    for start in (0, MAX_QUERIES):
        queries = QueryCache(file)
        for number in range(start, start + MAX_QUERIES // 2 + 1):
            queries.put(str(number), ["a"] if number % 2 else None)
        queries.save()

    stored = QueryCache(file)

    assert "0" not in stored
    assert stored.get(str(MAX_QUERIES)) is None
    assert stored.get(str(MAX_QUERIES + 1)) == ["a"]
    assert len(json.loads(file.read_text())) == MAX_QUERIES


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a": 1}', '{"a": [1]}', "null"])
def test_a_corrupt_cache_file_is_ignored_and_replaced(tmp_path: Path, text: str) -> None:
    file = tmp_path / "queries.json"
    file.write_text(text)
    queries = QueryCache(file)
    assert "a" not in queries

    queries.put("b", ["x"])
    queries.save()

    assert QueryCache(file).get("b") == ["x"]


def test_without_a_cache_folder_every_query_is_checked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    queries = QueryCache(tmp_path / "file" / "queries.json")
    queries.put("a", ["x"])

    queries.save()

    assert "a" not in QueryCache(tmp_path / "file" / "queries.json")
