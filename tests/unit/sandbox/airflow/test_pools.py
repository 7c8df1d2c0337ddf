"""The embedded stack's pools are those its environment declares, and are updated only when it changes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

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
