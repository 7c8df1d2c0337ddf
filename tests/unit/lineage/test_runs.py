"""Lineage: events of runs, in order without blocking, with datasets and columns through queries and other pipelines."""

from __future__ import annotations

import datetime
import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from deltaworks.control import paths
from deltaworks.lineage.datasets import (
    Column,
    Dataset,
    column_origins,
    gold_inputs,
    gold_outputs,
    stream_inputs,
    stream_outputs,
)
from deltaworks.lineage.events import build_event, open_client
from deltaworks.lineage.runs import PARENT_VARIABLE, Emitter, LineageRun, batch_lineage
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.environment import LineageSpec
from deltaworks.specs.project import load_catalog
from deltaworks.testing import load_project
from tests.unit.lineage.backend import Backend, running_backend
from tests.unit.specs.conftest import PIPELINE
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
    monkeypatch.setattr("deltaworks.tables.lake.Lake.open", lambda *_: None)
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


EVENTS = Dataset("s3://lake", "tables/games/events", {"event_date": "date", "device_id": "string", "amount": "double"})
INSTALL = Dataset("s3://lake", "tables/games/install", {"event_date": "date", "device_id": "string"})
READS = {"events": EVENTS, "install": INSTALL}


def origins(sql: str) -> dict[str, list[str]]:
    matched = column_origins(sql, READS)
    return {
        name: [f"{item.dataset.rpartition('/')[2]}.{item.name}" for item in columns]
        for name, columns in matched.items()
    }


@pytest.mark.parametrize(
    ("sql", "matched"),
    [
        ("SELECT event_date AS day, amount FROM events", {"day": ["events.event_date"], "amount": ["events.amount"]}),
        (
            "SELECT event_date, sum(amount) AS turnover, count(*) AS n FROM events GROUP BY 1",
            {"event_date": ["events.event_date"], "turnover": ["events.amount"]},
        ),
        ("WITH a AS (SELECT amount * 2 AS twice FROM events) SELECT twice + 1 AS x FROM a", {"x": ["events.amount"]}),
        (
            "SELECT coalesce(e.device_id, i.device_id) AS device FROM events e JOIN install i USING (event_date)",
            {"device": ["events.device_id", "install.device_id"]},
        ),
        (
            "SELECT device_id FROM events UNION ALL SELECT device_id FROM install",
            {"device_id": ["events.device_id", "install.device_id"]},
        ),
        ("SELECT * FROM install", {"event_date": ["install.event_date"], "device_id": ["install.device_id"]}),
        ("SELECT window(event_date, '1 hour').start AS hour FROM events", {"hour": ["events.event_date"]}),
        ("SELECT amount FROM EVENTS", {"amount": ["events.amount"]}),
        ("this is no SQL", {}),
    ],
)
def test_column_lineage_reaches_the_inputs(sql: str, matched: dict[str, list[str]]) -> None:
    assert {name: sorted(item) for name, item in origins(sql).items()} == matched


def test_self_joins_are_traced() -> None:
    sql = (PROJECT_ROOT / "include" / "pipelines" / "games" / "gold" / "retention.sql").read_text(encoding="utf-8")
    matched = column_origins(sql, READS)
    assert matched["cohort_date"] == (Column("s3://lake", "tables/games/install", "event_date"),)
    assert EVENTS.column("device_id") in matched["retained_day_1"]


SQL = """\
SELECT daily.event_date, sum(daily.turnover) AS turnover, max(o.amount) AS largest
FROM shop__daily AS daily JOIN orders AS o USING (event_date) GROUP BY 1
"""
GOLD = "gold:\n  tables: [{{name: {name}, sql: {name}.sql, reads: [{reads}], partition_by: event_date}}]\n"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """`board` reads gold of `shop`, which was built: its columns are in its table alone."""
    pipelines, files = [], {}
    for name, table, reads, sql in (
        ("shop", "daily", "orders", "SELECT event_date, sum(amount) AS turnover FROM orders GROUP BY 1"),
        ("board", "weekly", "shop.daily, orders", SQL),
    ):
        declared = PIPELINE.replace("pipeline: shop", f"pipeline: {name}")
        pipelines.append(declared + GOLD.format(name=table, reads=reads))
        files[f"pipelines/{name}/{table}.sql"] = sql
    rows = pa.table({"event_date": [datetime.date(2026, 1, 1)], "turnover": [1.5]})
    write_deltalake(tmp_path / "lake" / paths.table("shop", "daily"), rows)
    return load_project(tmp_path, *pipelines, files=files)


def test_the_input_is_the_table_of_the_other_pipeline(catalog: Catalog) -> None:
    inputs = {dataset.name.rpartition("/lake/")[2]: dataset for dataset in gold_inputs(catalog, "board", {})}

    assert set(inputs) == {paths.table("shop", "daily"), paths.table("board", "orders")}
    assert dict(inputs[paths.table("shop", "daily")].fields) == {"event_date": "date", "turnover": "double"}


def test_column_lineage_reaches_the_table_of_the_other_pipeline(catalog: Catalog) -> None:
    (output,) = gold_outputs(catalog, "board", {"weekly": 3})

    origins = {
        name: [(column.dataset.rpartition("/lake/")[2], column.name) for column in columns]
        for name, columns in output.columns.items()
    }
    assert origins["turnover"] == [(paths.table("shop", "daily"), "turnover")]
    assert origins["largest"] == [(paths.table("board", "orders"), "amount")]
    assert (paths.table("shop", "daily"), "event_date") in origins["event_date"]
    assert output.rows == 3


def lineage_to(url: str, **more: Any) -> LineageSpec:
    return LineageSpec(transport={"type": "http", "url": url} | more)


def an_event(number: int = 0) -> Any:
    return build_event(
        "RUNNING",
        at="2026-03-01T10:20:30Z",
        run_id=f"0198c3a0-0000-7000-8000-{number:012d}",
        namespace="deltaworks",
        job="games.stream",
        kind="STREAMING",
    )


def test_events_arrive_in_order_with_the_key_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINEAGE_KEY", "the-key")
    with running_backend() as backend:
        spec = lineage_to(backend.address, auth={"type": "api_key", "apiKey": "env:LINEAGE_KEY"})
        emitter = Emitter(lambda: open_client(spec))
        for number in range(5):
            emitter.emit(lambda number=number: an_event(number))  # type: ignore[misc]
        counts = emitter.close(seconds=60)
    assert [item["run"]["runId"][-1] for item in backend.events] == ["0", "1", "2", "3", "4"]
    assert (counts.sent, counts.failed, counts.dropped) == (5, 0, 0)
    assert {headers["Authorization"] for headers in backend.headers} == {"Bearer the-key"}


def test_a_hanging_backend_delays_nothing_and_dropped_events_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running_backend(hangs=True) as backend:
        emitter = Emitter(lambda: open_client(lineage_to(backend.address, timeout=60)), capacity=10)
        started = time.monotonic()
        for number in range(1000):
            emitter.emit(lambda number=number: an_event(number))  # type: ignore[misc]
        assert time.monotonic() - started < 1
        closing = time.monotonic()
        counts = emitter.close(seconds=0.5)
        assert time.monotonic() - closing < 5
    # One is on its way, and is lost with the others.
    assert (counts.sent, counts.failed) == (0, 0)
    assert counts.dropped == 1000
    assert "0 events sent, 0 failed, 1000 dropped" in caplog.text


def test_an_unavailable_backend_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    spec = lineage_to("http://127.0.0.1:9", retry={"total": 0})
    emitter = Emitter(lambda: open_client(spec))
    for number in range(3):
        emitter.emit(lambda number=number: an_event(number))  # type: ignore[misc]
    counts = emitter.close(seconds=60)
    assert (counts.sent, counts.failed, counts.dropped) == (0, 3, 0)
    assert (
        len(
            [
                record
                for record in caplog.records
                if record.levelname == "WARNING" and record.name == "deltaworks.lineage.runs"
            ]
        )
        == 2
    )


@pytest.mark.parametrize("where", ["open", "make", "send"])
def test_the_thread_survives_any_failure(where: str) -> None:
    sent: list[Any] = []
    fails = [True]

    def failing(at: str) -> None:
        if at == where and fails:
            fails.clear()
            raise RuntimeError(at)

    def open_sender() -> Callable[[Any], None]:
        failing("open")

        def send(created: Any) -> None:
            failing("send")
            sent.append(created)

        return send

    def created() -> str:
        failing("make")
        return "event"

    emitter = Emitter(open_sender)
    emitter.emit(created)
    emitter.emit(created)
    counts = emitter.close(seconds=30)
    assert (counts.sent, counts.failed, sent) == (1, 1, ["event"])
