"""Runs emit start and end with datasets, columns and their parent task."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from deltaworks.lineage.datasets import Dataset, stream_inputs, stream_outputs
from deltaworks.lineage.events import build_event
from deltaworks.lineage.runs import PARENT_VARIABLE, Emitter, LineageRun, batch_lineage
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import LineageSpec
from deltaworks.specs.project import load_catalog
from tests.unit.lineage.backend import Backend, running_backend
from tests.waiting import PATIENCE_SECONDS

RUN = "0198c3a0-0000-7000-8000-000000000001"


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Catalog, Backend]]:
    """The project's own pipelines, with lineage to a backend."""
    monkeypatch.setenv("DELTAWORKS_KAFKA_BOOTSTRAP", "broker:9092,other:9092")
    monkeypatch.setattr("deltaworks.lineage.runs.CLOSE_SECONDS", PATIENCE_SECONDS)
    with running_backend() as backend:
        catalog = load_catalog("aws")
        spec = LineageSpec(transport={"type": "http", "url": backend.address})
        catalog = catalog_with(catalog, spec)
        yield catalog, backend


def catalog_with(catalog: Catalog, spec: LineageSpec | None) -> Catalog:
    import dataclasses

    return dataclasses.replace(catalog, environment=catalog.environment.model_copy(update={"lineage": spec}))


def names(datasets: list[dict[str, Any]]) -> set[str]:
    return {dataset["name"].rpartition("/")[2] for dataset in datasets}


def test_a_stream_reads_fields_of_events_and_writes_columns_of_tables(reported: tuple[Catalog, Backend]) -> None:
    catalog, _ = reported
    spec = catalog.pipeline("games")
    landed = stream_inputs(catalog, spec)[0]
    assert landed.namespace.startswith("s3://")
    purchase = next(item for item in stream_outputs(catalog, spec) if item.name.endswith("/purchase"))
    declared = {column.name: column.path for column in spec.table("purchase").columns}
    assert dict(purchase.fields) == spec.table("purchase").column_types()
    for name, path in declared.items():
        assert purchase.columns[name] == (landed.column(path),)
        assert path in landed.fields
    assert {item.name.rpartition("/")[2] for item in stream_outputs(catalog, spec)} >= {"events", "quarantine"}


def test_topics_are_inputs_by_their_broker(reported: tuple[Catalog, Backend]) -> None:
    catalog, _ = reported
    inputs = stream_inputs(catalog, catalog.pipeline("engagement"))
    assert {dataset.namespace for dataset in inputs} == {"kafka://broker:9092"}


def test_a_gold_build_emits_its_outputs_and_its_parent_task(
    reported: tuple[Catalog, Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, backend = reported
    monkeypatch.setattr("deltaworks.lineage.gold.Lake.open", lambda *_: None)
    monkeypatch.setenv(PARENT_VARIABLE, f"airflow/team/games__gold.rebuild_gold/{RUN}")
    with batch_lineage(catalog, "games", "gold") as lineage:
        lineage.add("retention", 7)
    start, end = backend.events
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == end["run"]["runId"] == str(uuid.UUID(end["run"]["runId"]))
    assert end["job"]["namespace"] == "deltaworks"
    assert end["job"]["name"] == "games.gold"
    parent = end["run"]["facets"]["parent"]
    assert parent["run"]["runId"] == RUN
    assert (parent["job"]["namespace"], parent["job"]["name"]) == ("airflow/team", "games__gold.rebuild_gold")
    assert names(end["inputs"]) == {"install", "events"}
    (output,) = end["outputs"]
    assert output["name"].endswith("/games/retention")
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 7
    columns = output["facets"]["columnLineage"]["fields"]
    assert [field["field"] for field in columns["cohort_date"]["inputFields"]] == ["event_date"]


def test_a_failed_build_emits_its_error_without_data(reported: tuple[Catalog, Backend]) -> None:
    catalog, backend = reported
    with pytest.raises(ValueError, match="invalid literal"), batch_lineage(catalog, "engagement", "mutations"):
        int("the value of a customer")
    assert [item["eventType"] for item in backend.events] == ["START", "FAIL"]
    message = backend.events[1]["run"]["facets"]["errorMessage"]["message"]
    assert "invalid literal" in message
    assert "customer" not in message
    mutable = {table.name for table in catalog.pipeline("engagement").tables if table.mutable is not None}
    assert names(backend.events[0]["outputs"]) == mutable


def test_a_run_is_reported_at_a_bounded_rate_and_not_once_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("deltaworks.lineage.runs.time.monotonic", lambda: now[0])
    states: list[str] = []
    emitter = Emitter(lambda: lambda created: states.append(created.eventType.name))
    spec = LineageSpec(transport={"type": "console"}, every_seconds=60)
    run = LineageRun(spec, emitter, "games.stream", "STREAMING", lambda _: (), lambda _: (), _reported_at=0.0)
    run.emit("START")
    for second in range(600):
        now[0] = float(second)
        run.emit_running()
    run.emit("COMPLETE")
    now[0] = 1_000.0
    run.emit_running()
    monkeypatch.undo()
    emitter.close(seconds=60)
    assert states == ["START", *["RUNNING"] * 9, "COMPLETE"]


def test_without_lineage_no_client_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("openlineage")]:
        monkeypatch.delitem(sys.modules, name)
    catalog = catalog_with(load_catalog("aws"), None)
    with batch_lineage(catalog, "games", "gold") as lineage:
        lineage.add("retention")
    assert not [name for name in sys.modules if name.startswith("openlineage")]


@pytest.mark.parametrize("parent", ["", "no", "a/b/c", "namespace/job/not-a-run"])
def test_an_invalid_parent_is_omitted(parent: str) -> None:
    created = build_event(
        "START", at="2026-01-01T00:00:00Z", run_id=RUN, namespace="n", job="j", kind="BATCH", parent=parent
    )
    assert "parent" not in (created.run.facets or {})


def test_an_event_fits_the_schemas_it_names() -> None:
    """The client checks what it is given where an event is made; what has to be there by the specification is there."""
    from openlineage.client.serde import Serde

    table = Dataset("s3://lake", "a", {"x": "long"}, {"x": (Dataset("s3://b", "c").column("y"),)}, 3)
    created = build_event(
        "COMPLETE", at="2026-01-01T00:00:00Z", run_id=RUN, namespace="n", job="j", kind="BATCH", outputs=[table]
    )
    record = json.loads(Serde.to_json(created))
    assert {"eventType", "eventTime", "run", "job", "producer", "schemaURL", "inputs", "outputs"} <= set(record)
    assert record["schemaURL"].endswith("#/$defs/RunEvent")
    facets = record["outputs"][0]["facets"]
    assert all({"_producer", "_schemaURL"} <= set(facet) for facet in facets.values())
    (origin,) = facets["columnLineage"]["fields"]["x"]["inputFields"]
    assert (origin["namespace"], origin["name"], origin["field"]) == ("s3://b", "c", "y")
    assert facets["schema"]["fields"][0] == {"name": "x", "type": "long", "ordinal_position": 1, "fields": []}
