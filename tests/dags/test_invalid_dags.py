"""An invalid pipeline keeps its DAGs as placeholders with the errors; valid ones have their DAGs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.specs.project import load_catalog
from tests.console_harness import write_process_heartbeat
from tests.dags.airflow_project import REPOSITORY, run_python, write_project
from tests.dags.test_console_host import as_user, dags_on_record

__all__ = ["dags_on_record"]

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
        "form": sorted(read.params),
    }
print(json.dumps({"dags": dags, "errors": errors}))
"""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The parsed DAGs of a project in which `games`, with gold, and two relays are invalid."""
    project = write_project(tmp_path_factory.mktemp("wrong"))
    games = project / "include" / "pipelines" / "games" / "pipeline.yaml"
    games.write_text(games.read_text().replace("owner: games-data", "owner: games-data\ncolour: blue"))
    relays = project / "include" / "relays"
    (relays / "second.yaml").write_text("relay: second\n")
    (relays / "third.yaml").write_text("relay: third\nclean: {mode: delete}\n")
    return run_python(PARSE, project)


def test_valid_pipelines_have_all_their_dags(parsed: Any) -> None:
    sound = {name for name, dag in parsed["dags"].items() if "invalid declaration" not in dag["tags"]}

    assert {"edits__stream", "edits__maintenance", "edits__reprocess", "landing__relay", "deltaworks__health"} <= sound
    assert not [name for name in sound if name.startswith("games__")]


def test_an_invalid_pipeline_keeps_its_dags_without_a_schedule(parsed: Any) -> None:
    wrong = {name: dag for name, dag in parsed["dags"].items() if "invalid declaration" in dag["tags"]}

    assert {"games__gold", "games__maintenance", "games__stream", "second__relay", "third__relay"} <= wrong.keys()
    for name, dag in wrong.items():
        subject = name.rpartition("__")[0]
        mistake = "pipeline.yaml:4: colour: unknown key 'colour'" if subject == "games" else f"{subject}.yaml:1: "
        assert mistake in dag["docs"], name
        assert f"deltaworks stop {subject}" in dag["docs"]
        assert dag["schedule"] in (None, "None", "Never, external triggers only"), name
        assert dag["form"] == [], name


def kinds_of(parsed: Any, name: str) -> dict[str, Any]:
    """The DAGs of a pipeline or a relay, by kind."""
    return {dag_id.rpartition("__")[2]: dag for dag_id, dag in parsed["dags"].items() if dag_id.startswith(f"{name}__")}


def test_an_invalid_pipeline_has_the_dags_of_a_valid_one(parsed: Any) -> None:
    sound, wrong = kinds_of(parsed, "edits"), kinds_of(parsed, "games")

    assert {"control", "recover", "replay", "reprocess", "restore"} <= wrong.keys()
    assert wrong.keys() - sound.keys() == {"gold"}, "games has gold, edits has none"
    assert sound.keys() <= wrong.keys()
    assert kinds_of(parsed, "second").keys() == {"relay", "control", "recover"}
    assert kinds_of(parsed, "third").keys() == kinds_of(parsed, "landing").keys(), "it declares `clean` as landing does"
    for kind in sound.keys() - {"stream", "maintenance"}:
        assert wrong[kind]["tags"] == sorted({*sound[kind]["tags"], "invalid declaration", "games", kind} - {"edits"})


def test_a_running_run_keeps_its_tasks(parsed: Any) -> None:
    sound, wrong = kinds_of(parsed, "edits"), kinds_of(parsed, "games")

    assert wrong["stream"]["tasks"] == ["ingest"]
    assert wrong["restore"]["tasks"] == ["count", "dry_run_gate", "approve", "restore", "start_over", "rebuild_gold"]
    assert parsed["dags"]["second__relay"]["tasks"] == ["relay"]
    for kind in sound.keys() - {"maintenance"}:
        assert sorted(task for task in wrong[kind]["tasks"] if task != "rebuild_gold") == sorted(
            sound[kind]["tasks"]
        ), kind


def test_one_import_error_contains_all_validation_errors(parsed: Any) -> None:
    assert list(parsed["errors"]) == ["declarations.py"]
    shown = parsed["errors"]["declarations.py"]
    assert "pipeline games: 1 error in pipeline.yaml:" in shown
    assert "unknown key 'colour'" in shown
    assert "relay second: " in shown


def test_the_task_of_a_placeholder_dag_fails_with_the_error() -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from deltaworks.airflow.dag_factory import invalid_dag
    from deltaworks.errors import ConfigError

    dag = invalid_dag(
        "games",
        "restore",
        ConfigError("SPEC_INVALID", "games: colour", hint="Mend it."),
        task_ids=["count", "approve", "restore"],
    )

    assert dag.get_task("restore").upstream_task_ids == {"approve"}
    for task in dag.tasks:
        with pytest.raises(AirflowFailException, match=r"games: colour Next: Mend it\."):
            task.execute({})


def placeholder_runbook(kind: str, message: str) -> str:
    """Returns the runbook of a placeholder DAG of `games`."""
    from deltaworks.airflow.dag_factory import invalid_dag
    from deltaworks.errors import ConfigError

    error = ConfigError("SPEC_INVALID", message, hint="Mend it.")
    return invalid_dag("games", kind, error, task_ids=["task"]).doc_md or ""


def test_a_runbook_links_to_an_existing_console_page() -> None:
    assert "(/deltaworks/dag/games__stream)" in placeholder_runbook("stream", "games: colour")
    assert "(/deltaworks/)" in placeholder_runbook("restore", "games: colour")


def test_a_code_fence_in_an_error_does_not_end_its_block() -> None:
    docs = placeholder_runbook("stream", "key ```\n# big")

    assert docs.count("```") == 2


def test_the_console_shows_an_invalid_pipeline_with_error_and_run(
    dags_on_record: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.app import create_app

    from tests.dags.console_client import ConsoleClient

    project = write_project(tmp_path)
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(project))
    monkeypatch.setenv("DELTAWORKS_ENVIRONMENT", "local")
    write_process_heartbeat(
        open_objects(load_catalog().environment.lake), paths.pipeline_control("games"), "games", batch_id=41
    )
    games = project / "include" / "pipelines" / "games" / "pipeline.yaml"
    games.write_text("pipeline: games\ncolour: blue\n")

    with ConsoleClient(create_app(apps="core"), raise_server_exceptions=True) as server:
        listed = server.get("/deltaworks/?format=json", headers=as_user("vic", "viewer")).json()["view"]
        alone = server.get("/deltaworks/streams/games?format=json", headers=as_user("vic", "viewer")).json()["view"]

    assert sorted(row["dag_id"] for row in listed["streams"]) == ["edits__stream", "games__stream"]
    (row,) = [row for row in listed["streams"] if row["name"] == "games"]
    assert row["cause"] == "INVALID_DECLARATION"
    assert "pipeline.yaml:2: colour: unknown key 'colour'" in row["detail"]
    assert "The current run continues with the previous spec." in row["detail"]
    assert (alone["row"]["cause"], alone["owner"]["batch_id"]) == ("INVALID_DECLARATION", 41)


def test_every_invalid_pipeline_has_placeholder_dags() -> None:
    from deltaworks.airflow import continuous_dags, maintenance_dags, scheduled_dags
    from deltaworks.airflow.dag_factory import DagKind

    modules = (continuous_dags, maintenance_dags, scheduled_dags)
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, DagKind)]
    catalog = load_catalog("local", root=REPOSITORY)

    assert {kind.kind for kind in kinds if not kind.task_ids} == {
        "find_lost_events",
        "remediation",
        "rules",
        "spark_connect",
        "sql_server",
    }
    for kind in kinds:
        for dag in kind.dags(catalog):
            assert dag.dag_id.endswith(f"__{kind.kind}")
            assert set(kind.task_ids) <= set(dag.task_ids), dag.dag_id
