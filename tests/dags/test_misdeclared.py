"""A pipeline that is declared wrongly keeps its place in Airflow and says what is wrong; the others have their DAGs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dags.airflow_project import REPOSITORY, run_python, write_project

PARSE = """
import json
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
bag = DagBag()
errors = {file.rpartition("/")[2]: text for file, text in bag.import_errors.items()}
dags = {}
for name, dag in bag.dags.items():
    read = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    dags[name] = {
        "tags": sorted(dag.tags),
        "docs": dag.doc_md,
        "tasks": [task.task_id for task in dag.tasks],
        "schedule": read.timetable.summary,
    }
print(json.dumps({"dags": dags, "errors": errors}))
"""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What Airflow makes of a project in which `games`, with gold, and the relay `second` are declared wrongly."""
    project = write_project(tmp_path_factory.mktemp("wrong"))
    games = project / "include" / "pipelines" / "games" / "pipeline.yaml"
    games.write_text(games.read_text().replace("owner: games-data", "owner: games-data\ncolour: blue"))
    (project / "include" / "relays" / "second.yaml").write_text("relay: second\n")
    return run_python(PARSE, project)


def test_the_others_have_all_their_dags(parsed: Any) -> None:
    sound = {name for name, dag in parsed["dags"].items() if "declared wrongly" not in dag["tags"]}

    assert {"stream__edits", "maintenance__edits", "reprocess__edits", "relay__landing", "stream_health"} <= sound
    assert not [name for name in sound if name.endswith("__games")]


def test_a_wrong_one_keeps_its_dags_without_a_schedule_and_with_its_mistake(parsed: Any) -> None:
    wrong = {name: dag for name, dag in parsed["dags"].items() if "declared wrongly" in dag["tags"]}

    assert sorted(wrong) == ["gold__games", "maintenance__games", "relay__second", "stream__games"]
    for name, dag in wrong.items():
        mistake = "pipeline.yaml:4: colour: unknown key 'colour'" if name != "relay__second" else "second.yaml:1: "
        assert mistake in dag["docs"], name
        assert f"deltaworks stop {name.partition('__')[2]}" in dag["docs"]
        assert dag["schedule"] in (None, "None", "Never, external triggers only"), name


def test_a_run_under_way_keeps_its_task(parsed: Any) -> None:
    assert parsed["dags"]["stream__games"]["tasks"] == ["ingest"]
    assert parsed["dags"]["relay__second"]["tasks"] == ["relay"]


def test_every_mistake_is_in_one_import_error_and_nothing_else_is(parsed: Any) -> None:
    assert list(parsed["errors"]) == ["declarations.py"]
    shown = parsed["errors"]["declarations.py"]
    assert "pipeline games: 1 mistake in pipeline.yaml:" in shown
    assert "unknown key 'colour'" in shown
    assert "relay second: " in shown


def test_the_task_of_such_a_dag_fails_with_the_mistake() -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from deltaworks.airflow.misdeclared_dags import misdeclared_dag
    from deltaworks.errors import ConfigError

    dag = misdeclared_dag(
        "stream__games", ConfigError("SPEC_INVALID", "games: colour", hint="Mend it."), task_id="ingest"
    )

    with pytest.raises(AirflowFailException, match=r"games: colour Next: Mend it\."):
        dag.get_task("ingest").execute({})


def test_a_fence_in_a_mistake_does_not_end_the_block_that_shows_it() -> None:
    from deltaworks.airflow.runbooks import misdeclared_runbook
    from deltaworks.errors import ConfigError

    docs = misdeclared_runbook("stream__games", "games", ConfigError("SPEC_INVALID", "key ```\n# big", hint="h"))

    assert docs.count("```") == 2


def test_the_page_has_a_wrong_one_with_its_mistake_and_its_run(
    airflow_database: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.app import create_app
    from fastapi.testclient import TestClient

    from tests.dags.test_progress_page import as_user, write_heartbeat

    project = write_project(tmp_path)
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(project))
    monkeypatch.setenv("DELTAWORKS_ENVIRONMENT", "local")
    write_heartbeat("games")
    games = project / "include" / "pipelines" / "games" / "pipeline.yaml"
    games.write_text("pipeline: games\ncolour: blue\n")

    with TestClient(create_app(apps="core"), raise_server_exceptions=True) as server:
        listed = server.get("/deltaworks/progress?format=json", headers=as_user("vic", "viewer")).json()
        alone = server.get("/deltaworks/progress/stream__games?format=json", headers=as_user("vic", "viewer")).json()

    by_dag = {item["dag_id"]: item for item in listed}
    assert sorted(by_dag) == ["relay__landing", "stream__edits", "stream__games"]
    assert [item["dag_id"] for item in alone] == ["stream__games"]
    verdict = by_dag["stream__games"]["verdict"]
    assert verdict["cause"] == "DECLARED_WRONGLY"
    assert "pipeline.yaml:2: colour: unknown key 'colour'" in verdict["detail"]
    assert "Its run under way goes on, as it was declared when it started." in verdict["detail"]
    assert by_dag["stream__games"]["heartbeat"]["batch_id"] == 41


def test_the_dag_files_leave_no_wrong_pipeline_out() -> None:
    for name in ("streams", "gold", "maintenance", "mutations"):
        assert "wrong_pipelines(" in (REPOSITORY / "dags" / f"{name}.py").read_text(), name
