"""Table reads in a child process: its deadline, crash or invalid output is a message on the page."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import psutil
import pytest

from deltaworks.console.pages import table_read_pages
from deltaworks.console.table_reads import DASHBOARD_LIMITS, TABLE_LIMITS, ReadLimits, TableReadResult, read_tables
from deltaworks.control import paths
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.lake import Lake
from tests.console_harness import ConsoleHarness
from tests.dags.airflow_project import REPOSITORY
from tests.waiting import eventually


def limits(*, seconds: float = 600, wait_seconds: float = 600) -> ReadLimits:
    return ReadLimits(seconds=seconds, wait_seconds=wait_seconds, max_output_bytes=1 << 20)


def child(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def test_the_query_reaches_the_child_and_its_rows_are_returned() -> None:
    echo = "import json, sys; print('a warning'); print(json.dumps({'rows': [json.loads(sys.argv[1])]}))"

    answer = read_tables("history", command=child(echo), limits=limits(), table="a; rm -rf $HOME", pipeline="--help")

    assert answer.rows == ({"read": "history", "table": "a; rm -rf $HOME", "pipeline": "--help"},)


def test_a_child_beyond_the_deadline_is_killed() -> None:
    before = {process.pid for process in psutil.Process().children(recursive=True)}

    answer = read_tables("history", command=child("import time; time.sleep(600)"), limits=limits(seconds=0.3))

    assert answer == TableReadResult(unfinished=True)
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before


@pytest.mark.parametrize(
    "code",
    ["import os; os.abort()", "raise SystemExit(9)", "print('{')", "print('[]')", "print('{}')", "print('null')"],
)
def test_a_crashed_child_or_invalid_output_is_a_problem_on_the_page(code: str) -> None:
    answer = read_tables("history", command=child(code), limits=limits())

    assert answer.rows == ()
    assert "no answer" in answer.problem


def test_an_error_of_the_child_is_the_problem() -> None:
    answer = read_tables("history", command=child('print(\'{"error": "no log"}\')'), limits=limits())

    assert answer == TableReadResult(problem="no log")


def test_a_missing_program_is_a_problem_on_the_page() -> None:
    assert "could not be started" in read_tables("history", command=("/nowhere/at/all",)).problem


def test_one_child_of_a_kind_runs_at_a_time(tmp_path: Path) -> None:
    shared = limits(wait_seconds=0.0)
    begun, go = tmp_path / "begun", tmp_path / "go"
    waits = (
        f"import pathlib, time; pathlib.Path({str(begun)!r}).touch()\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)"
    )
    first = threading.Thread(target=read_tables, args=("history",), kwargs={"command": child(waits), "limits": shared})
    first.start()
    eventually(begun.exists, "the first child runs")

    empty = child("print('{\"rows\": []}')")
    answer, other_kind = (read_tables("history", command=empty, limits=one) for one in (shared, limits()))
    go.touch()
    first.join()

    assert answer == TableReadResult(unfinished=True)
    assert other_kind == TableReadResult()
    assert read_tables("history", command=empty, limits=shared) == TableReadResult()


def test_a_dashboard_does_not_make_table_reads_wait() -> None:
    assert DASHBOARD_LIMITS.lock is not TABLE_LIMITS.lock
    assert (TABLE_LIMITS.seconds, DASHBOARD_LIMITS.seconds) == (15, 75)


def test_output_beyond_the_limit_is_a_problem_on_the_page() -> None:
    answer = read_tables(
        "dashboard", command=child("print('{\"document\": \"' + 'x' * 2_000_000 + '\"}')"), limits=limits()
    )

    assert "no answer" in answer.problem


COMMIT = {"version": 3, "at": "2026-03-01T12:00:00+00:00", "operation": "WRITE", "by": "append", "metrics": {"n": "1"}}


def test_the_history_of_a_table_is_a_table(harness: ConsoleHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        table_read_pages, "read_tables", lambda *_, **__: TableReadResult(rows=(COMMIT, {"version": None}))
    )
    page = harness.get("/tables/games/events/history").text

    assert "WRITE" in page
    assert "no row changed" in page
    assert "<html" not in harness.get("/tables/games/events/history?fragment=1").text


def test_samples_are_shown_to_people_who_may_reprocess_and_are_not_cached(
    harness: ConsoleHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = {"event": "<b>", "reasons": [{"code": "malformed", "path": "", "detail": "x"}, 3], "raw": "<script>"}
    monkeypatch.setattr(table_read_pages, "read_tables", lambda *_, **__: TableReadResult(rows=(sample,)))
    answer = harness.get("/quarantine/games/samples")

    assert "&lt;script&gt;" in answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert harness.get("/quarantine/games/samples", by="vic").status_code == 404


def test_the_real_child_reads_committed_rows(harness: ConsoleHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "include"))
    lake = Lake(harness.catalog.environment.lake)
    lake.ensure(paths.table("games", "purchase"), arrow_schema({"n": "long"}), user_metadata=json.dumps({"run": "r1"}))
    answer = read_tables("history", limits=limits(), pipeline="games", table="purchase")

    assert [row["version"] for row in answer.rows] == [0], answer
    assert "declares no table" in read_tables("history", limits=limits(), pipeline="games", table="none").problem
