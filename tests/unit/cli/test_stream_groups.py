"""`deltaworks stop`, `start` and `restart` of a group member and of a group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from deltaworks.cli import app, streams
from deltaworks.control import paths
from deltaworks.control.backoff import RestartBackoff
from deltaworks.control.health.heartbeat import StopFlag, group_backoff, group_stop_flag
from deltaworks.control.health.report import check_subject, subjects
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ContractError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from tests.airflow_server import AirflowServer, airflow_server
from tests.commands import output_of as invoke
from tests.unit.specs.test_airflow import project


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[AirflowServer]:
    with airflow_server("small__stream_group", "c__stream") as server:
        monkeypatch.setenv("AIRFLOW_CONN_DELTAWORKS_AIRFLOW", server.connection())
        yield server


def pauses(airflow: AirflowServer) -> list[tuple[str, str]]:
    """The pauses and unpauses of DAGs, in order."""
    words = {True: "pause", False: "unpause"}
    return [(words[body["is_paused"]], path.rpartition("/")[2]) for _, path, body in airflow.changes()]


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    root = project(tmp_path, a="stream_group: small", b="stream_group: small", c="")
    file = root / "include" / "environments" / "local.yaml"
    file.write_text(file.read_text().replace("file:///lake", f"file://{tmp_path}/lake"))
    catalog = load_catalog("local", root=root)
    monkeypatch.setattr(streams, "catalog", lambda: catalog)
    return catalog


@pytest.fixture
def objects(catalog: Catalog) -> ObjectStore:
    return open_objects(catalog.environment.lake)


def test_a_member_is_stopped_without_pausing_the_dag_of_its_group(
    catalog: Catalog, objects: ObjectStore, airflow: AirflowServer
) -> None:
    invoke("stop", "a")

    assert StopFlag(objects, paths.pipeline_control("a", "stop.json")).read() is not None
    assert group_stop_flag(objects, "small").read() is None
    assert pauses(airflow) == []


def test_a_member_that_was_parked_is_started_by_its_driver(
    catalog: Catalog, objects: ObjectStore, airflow: AirflowServer
) -> None:
    parked = RestartBackoff(objects, paths.pipeline_control("a", "failures.json"))
    parked.record_failure()
    parked.park("RULE_FAILED")

    said = invoke("start", "a")

    assert not parked.read().parked_condition
    assert "the driver of its group small starts it" in said
    assert pauses(airflow) == [("unpause", "small__stream_group")], "it may be paused, when nothing would start it"


def test_a_group_is_stopped_and_started_as_a_whole(
    catalog: Catalog, objects: ObjectStore, airflow: AirflowServer
) -> None:
    invoke("stop", "--group", "small")
    stopped = [check_subject(subject, objects).verdict for subject in subjects(catalog)]

    assert pauses(airflow) == [("pause", "small__stream_group")]
    assert {verdict.name: verdict.next_step for verdict in stopped if verdict.state == "stopped"} == {
        "a": "deltaworks start --group small",
        "b": "deltaworks start --group small",
    }
    assert "deltaworks start --group small" in invoke("start", "a")
    assert len(pauses(airflow)) == 1, "one member does not start its group"

    group_backoff(objects, "small").record_failure()
    invoke("start", "--group", "small")

    assert group_stop_flag(objects, "small").read() is None
    assert group_backoff(objects, "small").read().failures == 0
    assert pauses(airflow)[-1] == ("unpause", "small__stream_group")


def test_a_pipeline_without_a_group_is_stopped_as_before(catalog: Catalog, airflow: AirflowServer) -> None:
    invoke("stop", "c")

    assert pauses(airflow) == [("pause", "c__stream")]


@pytest.mark.parametrize("arguments", [["stop"], ["stop", "a", "--group", "small"], ["start", "--group", "smal"]])
def test_exactly_one_existing_target_must_be_named(
    catalog: Catalog, airflow: AirflowServer, arguments: list[str]
) -> None:
    result = CliRunner().invoke(app, arguments)

    assert result.exit_code != 0
    assert pauses(airflow) == []


def test_a_member_is_restarted_by_its_driver(catalog: Catalog, objects: ObjectStore, airflow: AirflowServer) -> None:
    said = invoke("restart", "a")

    assert "the driver of its group small starts it" in said
    assert StopFlag(objects, paths.pipeline_control("a", "stop.json")).read() is None
    assert ("pause", "small__stream_group") not in pauses(airflow)


def test_a_group_is_restarted_as_a_whole(catalog: Catalog, objects: ObjectStore, airflow: AirflowServer) -> None:
    invoke("restart", "--group", "small")

    assert group_stop_flag(objects, "small").read() is None
    assert pauses(airflow) == [("unpause", "small__stream_group")]


def refuse_member(catalog: Catalog, objects: ObjectStore, name: str) -> None:
    """The member ran with another source, and its table has rows."""
    spec = catalog.pipeline(name)
    declared = spec.to_dict()
    ran_with = PipelineSpec.model_validate(declared | {"source": declared["source"] | {"uri": "file:///former"}})
    PipelineHome(objects, name).specs.record_start(ran_with, owner_epoch=1)
    folder = catalog.environment.lake.prefix
    write_deltalake(f"{folder}/{paths.table(name, spec.tables[0].name)}", pa.table({"amount": [1]}))


def test_a_group_keeps_running_if_the_start_of_a_member_is_refused(
    catalog: Catalog, objects: ObjectStore, airflow: AirflowServer
) -> None:
    refuse_member(catalog, objects, "b")

    result = CliRunner().invoke(app, ["restart", "--group", "small"])

    assert isinstance(result.exception, ContractError)
    assert (result.exception.condition, "'b'" in result.exception.message) == ("SPEC_CHANGE_UNSAFE", True)
    assert group_stop_flag(objects, "small").read() is None
    assert airflow.requests == []
    assert "released" in invoke("restart", "a")


def test_a_stopped_group_starts_without_its_refused_member_and_says_so(
    catalog: Catalog, objects: ObjectStore, airflow: AirflowServer
) -> None:
    group_stop_flag(objects, "small").set(by="ada", reason="test")
    refuse_member(catalog, objects, "b")

    said = invoke("start", "--group", "small")

    assert "It starts without one of its members. [SPEC_CHANGE_UNSAFE] The stream of 'b'" in said
    assert group_stop_flag(objects, "small").read() is None
    assert pauses(airflow) == [("unpause", "small__stream_group")]
