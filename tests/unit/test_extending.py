"""Runs the examples of docs/contributing/extending.md, each placed where the page says."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from textwrap import indent
from types import ModuleType, SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from benchmarks.harness import Options
from deltaworks.control import paths
from deltaworks.dashboards.answers import answer_dashboard
from deltaworks.dashboards.page import dashboard_page
from deltaworks.dashboards.spans import parse_span
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.formats.json import Malformed
from deltaworks.events.parse import Parser
from deltaworks.events.redaction import RedactionKeys
from deltaworks.models.fitting import label_query
from deltaworks.privacy.tokens.envelope_encryption import token
from deltaworks.rules.backtest import backtest
from deltaworks.sources.registry import SOURCES, open_source
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.checks.project import check_project
from deltaworks.specs.project import load_catalog
from deltaworks.testing import payloads_of, write_project
from tests.http_server import http_server
from tests.processes import run_process

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "contributing/extending.md"
KEY = bytes(32)
STAMP = BatchMetadata(batch_id=1, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")
ORDER = {"kind": "order_placed", "at": "2023-11-14T22:00:00Z", "order_id": "o1", "country": "NL", "amount": "9.50"}


def sections() -> dict[str, list[tuple[str, str, str]]]:
    """The examples of each section: the kind, the path where there is one, the text."""
    _, *parts = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    example = re.compile(r"<!-- example: (\w+)(?: (\S+))? -->\n```\w+\n(.*?)```", re.DOTALL)
    found: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        found[title] += example.findall(text)
    return found


def example(title: str, number: int = 0) -> tuple[str, str]:
    """The path and the text of an example."""
    _, path, text = sections()[title][number]
    return path, text


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the pipeline of games and its relay."""
    include = write_project(tmp_path, lake=Path("/"), relays=[]) / "include"
    (include / "relays").mkdir()
    shutil.copy(ROOT / "include/relays/landing.yaml", include / "relays")
    shutil.copytree(ROOT / "include/pipelines/games", include / "pipelines" / "games")
    return tmp_path


def write(project: Path, path: str, text: str) -> Path:
    """Put an example where the page says."""
    file = project / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def catalog(project: Path) -> Catalog:
    """What is declared, read as every job reads it."""
    return load_catalog("local", root=project)


def rows_of(project: Path, pipeline: str, *payloads: Payload | bytes) -> dict[str, pa.Table]:
    """What lands of payloads, by table."""
    spec = catalog(project).pipeline(pipeline)
    keys = RedactionKeys(KEY) if spec.privacy else None
    return dict(Parser(spec, redaction_keys=keys).parse(payloads_of(*payloads), STAMP))


def load_module(project: Path, title: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that a section shows, imported from where the page puts it."""
    path, text = example(title)
    file = write(project, path, text)
    spec = importlib.util.spec_from_file_location(f"example_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def code(project: Path) -> Path:
    """A copy of the library, in which the examples that extend a module of it can be put."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "include/deltaworks", project / "include/deltaworks", ignore=ignored)
    shutil.copytree(ROOT / "spark_jobs", project / "spark_jobs", ignore=ignored)
    return project


def insert(code: Path, path: str, entry: str, *, into: str) -> None:
    """Put an entry at the beginning of the tuple of that name in a module."""
    file = code / path
    before, opening, after = file.read_text().partition(f"\n{into} = (\n")
    assert opening, f"{path} has no {into}"
    file.write_text(f"{before}{opening}{indent(entry.rstrip(), ' ' * 4)},\n{after}")


def run(code: Path, *arguments: str) -> str:
    """What Python prints with the copied library instead of this one."""
    settings = {
        "PYTHONPATH": str(code / "include"),
        "DELTAWORKS_PROJECT": str(code),
        "DELTAWORKS_ENVIRONMENT": "local",
        "AIRFLOW_HOME": str(code / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "COLUMNS": "120",
    }
    done = run_process([sys.executable, *arguments], env=os.environ | settings, cwd=code)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_way_to_extend_has_an_example() -> None:
    ways = {title for title in sections() if title.startswith("Add ")}

    assert {title for title in ways if not sections()[title]} == set()


def test_a_table_that_is_added_takes_its_events(project: Path) -> None:
    file = project / "include/pipelines/games/pipeline.yaml"
    declared = yaml.safe_load(file.read_text())
    declared["tables"] += yaml.safe_load(example("Add a table")[1])
    file.write_text(yaml.safe_dump(declared))
    event = {
        "eventName": "level_failed",
        "eventTime": 1_700_000_000,
        "eventParams": {"device_id": "d1", "level": 7, "event_id": "e1"},
    }

    rows = rows_of(project, "games", json.dumps({"body": json.dumps(event)}).encode())

    assert [(row["device_id"], row["level"]) for row in rows["level_failed"].to_pylist()] == [
        (token(KEY, kind="device", value="d1"), 7)
    ]


def test_a_pipeline_that_is_added_lands_what_fits_and_keeps_the_rest(project: Path) -> None:
    write(project, *example("Add a pipeline"))

    rows = rows_of(project, "orders", json.dumps(ORDER).encode(), json.dumps(ORDER | {"order_id": None}).encode())

    assert [row["amount"] for row in rows["placed"].to_pylist()] == [Decimal("9.50")]
    assert [row["reasons"][0]["path"] for row in rows["quarantine"].to_pylist()] == ["order_id"]


def test_a_gold_table_that_is_added_answers(project: Path) -> None:
    path, pipeline = example("Add a pipeline")
    write(project, path, pipeline + example("Add a gold table")[1])
    write(project, *example("Add a gold table", 1))

    gold = catalog(project).pipeline("orders").gold
    assert gold is not None
    table = gold.tables[0]
    sql = (catalog(project).folder("orders") / table.sql).read_text()
    placed = rows_of(project, "orders", json.dumps(ORDER).encode(), json.dumps(ORDER | {"order_id": "o2"}).encode())
    session = duckdb.connect()
    session.register(table.reads[0], placed["placed"])
    answer = session.sql(sql).to_arrow_table()

    assert table.partition_by in answer.column_names
    assert [(row["country"], row["orders"], row["turnover"]) for row in answer.to_pylist()] == [
        ("NL", 2, Decimal("19.00"))
    ]


def test_a_model_that_is_added_is_declared_rightly_and_labels_what_was_ordered(project: Path) -> None:
    path, pipeline = example("Add a pipeline")
    write(project, path, pipeline + example("Add a gold table")[1] + example("Add a model")[1])
    write(project, *example("Add a gold table", 1))
    write(project, *example("Add a model", 1))
    label = write(project, *example("Add a model", 2)).read_text()

    assert check_project("local", root=project).errors == []
    (model,) = catalog(project).pipeline("orders").models
    assert (model.columns, model.horizon_seconds) == (("orders_1", "orders_7"), 86_400)
    session = duckdb.connect()
    session.register(
        "turnover", pa.Table.from_pylist([{"country": "NL", "event_date": date(2023, 11, 14), "orders": 2}])
    )
    states = session.sql(f"SELECT country, epoch(event_date)::BIGINT + 86400 AS _at, holds FROM ({label})")
    states.create("states")
    session.sql(
        "CREATE TABLE feature_rows AS SELECT 'NL' AS country, epoch(d::DATE)::BIGINT + 86400 AS _at, 1 AS orders_1, "
        "1 AS orders_7 FROM (VALUES ('2023-11-13'), ('2023-11-14')) AS days(d)"
    )
    labels = label_query(
        rows="feature_rows",
        states="states",
        entity=model.entity,
        columns=model.columns,
        predicts=model.predicts,
        horizon_seconds=model.horizon_seconds,
    )
    assert [row[2] for row in session.sql(f"SELECT * FROM ({labels}) ORDER BY _at").fetchall()] == [False, True]


def test_a_dashboard_that_is_added_is_drawn(project: Path) -> None:
    write_project(project, relays=[])
    path, pipeline = example("Add a pipeline")
    write(project, path, pipeline + example("Add a gold table")[1] + example("Add a dashboard")[1])
    write(project, *example("Add a gold table", 1))
    write(project, *example("Add a dashboard", 1))
    assert check_project("local", root=project).errors == []
    days = [date(2023, 11, 14), date(2023, 11, 15), date(2023, 11, 16)]
    rows = [{"event_date": day, "country": "NL", "turnover": Decimal("9.50")} for day in days]
    declared = catalog(project)
    write_deltalake(declared.environment.lake.uri("tables/orders/turnover"), pa.Table.from_pylist(rows))
    (dashboard,) = declared.pipeline("orders").dashboards

    answer = answer_dashboard(
        declared, "orders", dashboard, parse_span(dashboard, since="2023-11-15", until="2023-11-15")
    )

    assert [panel.rows for panel in answer.panels] == [((days[1], "NL", Decimal("9.50")),)]
    assert "9.50" in dashboard_page(answer)


def test_a_rule_that_is_added_is_judged(project: Path) -> None:
    write_project(project, relays=[])
    path, pipeline = example("Add a pipeline")
    write(project, path, pipeline + example("Add a rule on answers")[1])
    write(project, *example("Add a rule on answers", 1))
    assert check_project("local", root=project).errors == []
    declared = catalog(project)
    (rule,) = declared.pipeline("orders").rules
    start = datetime(2026, 3, 2, 10, tzinfo=UTC)
    weeks_ago = [start - timedelta(days=7 * week) for week in (1, 2)]
    times = [at + timedelta(minutes=number) for at in weeks_ago for number in range(50)]
    times += [start + timedelta(minutes=number) for number in range(25)] + [start + timedelta(hours=1)]
    rows = [{"event_date": at.date(), "event_time": at, "country": "NL"} for at in times]
    write_deltalake(declared.environment.lake.uri("tables/orders/placed"), pa.Table.from_pylist(rows))

    result = backtest(declared, "orders", rule, since=start, until=start + timedelta(hours=1))

    assert [(point.value, point.baseline) for point in result.points] == [(25.0, 50.0)]
    assert [notification.subject for notification in result.notifications] == ["orders.few_orders{country=NL}"]


def test_an_alert_that_is_added_is_raised_resolved_and_listed_in_the_docs(code: Path) -> None:
    path, row = example("Add an alert")
    conditions = json.loads((code / path).read_text())
    added = json.loads(f"{{{row}}}")
    conditions["alerts"]["jobs"] |= added
    (code / path).write_text(json.dumps(conditions))
    write(code, *example("Add an alert", 1))
    (name,) = added
    program = f"""
from deltaworks.alerts.raising import alerts
from deltaworks.control.objects import open_objects
from deltaworks.errors.docs_tables import TABLES
from deltaworks.maintenance.row_counts import compare_rows
from deltaworks.specs.storage import StorageSpec

objects = open_objects(StorageSpec(root="file://{code}/lake"))
for before, now in ((5, 4), (4, 4)):
    compare_rows(objects, "games.purchase", before=before, now=now)
    print([(alert.cause, alert.subject, alert.state.is_open) for alert in alerts(objects)])
print(any("{name}" in table() for table in TABLES.values()))
"""

    assert run(code, "-c", program).splitlines() == [
        f"[('{name}', 'games.purchase', True)]",
        f"[('{name}', 'games.purchase', False)]",
        "True",
    ]


def test_an_operation_that_is_added_has_a_command_a_job_and_a_form(code: Path) -> None:
    write(code, *example("Add an operation"))
    insert(code, *example("Add an operation", 1), into="_OPERATIONS")
    write_project(code, relays=[])
    write_deltalake(str(code / "lake" / paths.table("games", "purchase")), pa.table({"amount": [1, 2, 3]}))
    program = """
from deltaworks.airflow.operation_dags import triggered_dag
from deltaworks.operations.dag_forms import pipeline_forms
from deltaworks.specs.project import load_catalog

catalog = load_catalog()
games = catalog.pipeline("games")
form = next(form for form in pipeline_forms(games) if form.kind == "count_rows")
dag = triggered_dag(form, games, catalog.environment)
print(dag.dag_id, dag.task_ids, dag.params.get_param("table").schema["enum"] == [t.name for t in games.tables])
"""

    assert "games.purchase: 3 rows" in run(code, "-m", "deltaworks.cli", "tables", "count", "games", "purchase")
    job = ("-m", "deltaworks.operations", "count_rows", "--pipeline", "games", '--options={"table":"purchase"}')
    assert "games.purchase: 3 rows" in run(code, *job)
    assert run(code, "-c", program).splitlines()[-1] == "games__count_rows ['count_rows'] True"


def test_a_relay_that_is_added_is_read(project: Path) -> None:
    write(project, *example("Add a relay"))

    assert catalog(project).relay("partners").buckets == ("partner-drops",)


@pytest.fixture
def pages() -> Iterator[str]:
    """The address of an API that answers with the number of the page that is asked for."""
    with http_server(lambda request: (200, ORDER | {"order_id": request.path.rpartition("=")[2]})) as address:
        yield f"{address}/orders"


class Batch:
    """Stands for the DataFrame of a batch, whose rows come in any order."""

    def __init__(self, *values: int) -> None:
        self._values = values

    def select(self, column: str) -> Batch:
        assert column == "value"
        return self

    def sort(self, column: str) -> Batch:
        return Batch(*sorted(self._values))

    def collect(self) -> list[dict[str, int]]:
        return [{"value": value} for value in self._values]


def test_a_source_that_is_added_gives_the_same_payloads_at_every_reading(
    project: Path, pages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, *example("Add a pipeline"))
    module = load_module(project, "Add a source", monkeypatch)
    monkeypatch.setattr("deltaworks.sources.registry.SOURCES", {**SOURCES, "pages": "example_pages:PagesSource"})
    spec: Any = SimpleNamespace(source=module.PagesSourceSpec(kind="pages", url=pages))

    source = open_source(catalog(project), spec)
    first, again = (source.slice_of(Batch(3, 1, 2), batch_id=1, offsets=lambda: ({}, {})) for _ in range(2))  # type: ignore[arg-type]
    payloads = [[part.opener(page) for page in part.references] for part in (first, again)]  # type: ignore[attr-defined]
    rows = rows_of(project, "orders", *payloads[0])

    assert payloads[0] == payloads[1]
    assert [row["order_id"] for row in rows["placed"].to_pylist()] == ["1", "2", "3"]
    assert source.backlog(None) == {}
    assert first.metadata == {"pages": 3}


def test_a_format_that_is_added_gives_events_and_keeps_what_cannot_be_read(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, *example("Add a pipeline"))
    module = load_module(project, "Add a format", monkeypatch)
    line = " ".join(f'{key}="{value}"' for key, value in ORDER.items()).encode()

    *events, malformed = module.values(b"\n".join([line, b"", line, b'broken="']))
    rows = rows_of(project, "orders", Payload(1, "k1", b"", events=tuple(enumerate(events))))

    assert [row["order_id"] for row in rows["placed"].to_pylist()] == ["o1", "o1"]
    assert isinstance(malformed[0], Malformed)
    assert malformed[1] == b'broken="'


def test_a_benchmark_that_is_added_compares_its_sides(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_module(project, "Add a benchmark", monkeypatch)
    printed = io.StringIO()

    figures = module.BENCHMARK.run(Options(repeats=1, events=200, progress=lambda line: print(line, file=printed)))

    assert [(figure.benchmark, figure.metric) for figure in figures] == [("reading_json", "orjson_vs_json")]
    assert figures[0].ours > 0
    assert "orjson" in printed.getvalue()
