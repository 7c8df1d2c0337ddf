"""The embedded stack's Airflow: pools and DAG files follow declarations, and SQLite's writers wait for their lock."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deltaworks.testing import write_files
from sandbox.airflow.database import CONNECT_ARGS
from sandbox.airflow.declarations_bundle import DeclarationsBundle
from sandbox.airflow.settings import AirflowHome
from sandbox.stack.home import StackHome
from sandbox.stack.state import StackState
from tests.unit.specs.conftest import ENVIRONMENT, make_project

__all__ = ["make_project"]


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What Airflow is run with, which is not run."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_pools_follow_the_environment_and_are_imported_once(
    make_project: Callable[..., Path],
    tmp_path: Path,
    imports: list[list[str]],
) -> None:
    project = make_project(environment=f"{ENVIRONMENT}shares: {{gold: {{slots: 3}}, mutation: {{pool: gold}}}}\n")
    home = StackHome.at(tmp_path / "stack", project=project)
    for folder in (home.airflow, home.logs, home.run):
        folder.mkdir(parents=True, exist_ok=True)
    airflow = AirflowHome(home, {"DELTAWORKS_ENVIRONMENT": "local"})

    first = airflow.import_pools(StackState())
    again = airflow.import_pools(first)
    declared = json.loads((home.airflow / "pools.json").read_text())
    make_project(environment=f"{ENVIRONMENT}shares: {{gold: {{slots: 4}}}}\n")
    airflow.import_pools(again)

    assert first == again
    assert [command[-3:-1] for command in imports] == [["pools", "import"], ["pools", "import"]]
    assert {name: pool["slots"] for name, pool in declared.items()} == {
        "relays": 4,
        "processes": 4,
        "streams": 8,
        "gold": 3,
        "maintenance": 1,
        "reprocess": 1,
    }


def opened(path: Path, **more: Any) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=60, check_same_thread=False, **more)


def write(connection: sqlite3.Connection, who: str) -> None:
    connection.cursor().execute("INSERT INTO runs VALUES (?)", (who,))
    connection.commit()


@pytest.mark.parametrize("off", [False, True], ids=["protected", "without"])
def test_what_reads_and_writes_after_a_savepoint_waits_for_its_turn_and_others_for_it(
    tmp_path: Path, off: bool
) -> None:
    path = tmp_path / "airflow.db"
    setup = opened(path)
    setup.execute("PRAGMA journal_mode=WAL")
    setup.execute("CREATE TABLE runs (who TEXT)")
    backfill, scheduler = opened(path, **({} if off else CONNECT_ARGS)), opened(path)
    cursor = backfill.cursor()
    cursor.execute("SAVEPOINT one")
    cursor.execute("SELECT count(*) FROM runs").fetchall()
    other = threading.Thread(target=write, args=(scheduler, "scheduler"))
    other.start()
    if off:
        other.join()
        with pytest.raises(sqlite3.OperationalError, match="database is locked"):
            cursor.execute("INSERT INTO runs VALUES ('backfill')")
        return

    cursor.execute("INSERT INTO runs VALUES ('backfill')")
    cursor.execute("RELEASE one")
    assert opened(path).execute("SELECT who FROM runs").fetchall() == [], "what is released is not committed yet"
    backfill.commit()
    other.join()

    assert opened(path).execute("SELECT who FROM runs").fetchall() == [("backfill",), ("scheduler",)]


def test_a_savepoint_within_a_transaction_begins_none(tmp_path: Path) -> None:
    connection = opened(tmp_path / "airflow.db", **CONNECT_ARGS)
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE runs (who TEXT)")
    cursor.execute("INSERT INTO runs VALUES ('a')")

    cursor.execute("SAVEPOINT one")
    cursor.execute("INSERT INTO runs VALUES ('b')")
    cursor.execute("ROLLBACK TO one")
    connection.commit()

    assert cursor.execute("SELECT who FROM runs").fetchall() == [("a",)]


EARLIER_SECONDS = 1_000_000


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("dags/streams.py", "dags/notes.txt", "include/pipelines/shop/pipeline.yaml"):
        path = tmp_path / name
        write_files(tmp_path, {name: "one"})
        os.utime(path, (EARLIER_SECONDS, EARLIER_SECONDS))
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(tmp_path))
    return tmp_path


def edit(project: Path) -> None:
    (project / "include/pipelines/shop/pipeline.yaml").write_text("other")


def add(project: Path) -> None:
    write_files(project, {"include/pipelines/store/gold/sums.sql": "SELECT 1"})


def remove(project: Path) -> None:
    (project / "include/pipelines/shop/pipeline.yaml").unlink()


@pytest.mark.parametrize("change", [edit, add, remove])
def test_dag_files_are_changed_once_after_a_declaration_is(project: Path, change: Callable[[Path], None]) -> None:
    bundle = DeclarationsBundle(name="dags-folder", path=str(project / "dags"))
    dag = project / "dags" / "streams.py"

    bundle.refresh()
    assert dag.stat().st_mtime == EARLIER_SECONDS
    change(project)
    bundle.refresh()
    assert dag.stat().st_mtime > EARLIER_SECONDS
    assert (project / "dags" / "notes.txt").stat().st_mtime == EARLIER_SECONDS
    os.utime(dag, (EARLIER_SECONDS, EARLIER_SECONDS))
    bundle.refresh()
    assert dag.stat().st_mtime == EARLIER_SECONDS


def test_dag_files_that_cannot_be_changed_are_reported(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = DeclarationsBundle(name="dags-folder", path=str(project / "dags"))
    edit(project)

    def refuse(_path: Path) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(Path, "touch", refuse)
    bundle.refresh()
    assert "streams.py follows the changed declarations only after the parsing interval" in caplog.text
