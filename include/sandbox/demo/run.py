"""The demo: real and generated events become KPIs through every part, and each answer is compared with the truth."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.control.records.checkpoint import live_read_below
from deltaworks.errors import TransientError
from deltaworks.operations.airflow_api import AirflowApi, DagRun
from deltaworks.specs.catalog import Catalog, load_catalog
from deltaworks.specs.settings_file import load_settings
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import connect
from generator.delivery import Published, publish
from generator.games import generate_games
from generator.replay import replay_lines
from generator.settings import GamesSettings
from generator.truth import GamesTruth
from sandbox.demo.answers import PUBLISHED_EDITS_FILE, AnswerSheet, EditsTruth, answer_edits, answer_games
from sandbox.demo.freshness import measure_freshness
from sandbox.demo.landing_sink import landing_sink
from sandbox.demo.memory import PeakMemory
from sandbox.demo.provenance_check import check_provenance
from sandbox.demo.report import DemoReport
from sandbox.servers.landing import list_requests
from sandbox.stack import stack
from sandbox.stack.home import StackHome
from sandbox.stack.report import StackAddresses

Progress = Callable[[str], None]
#: What the demo sends events to: no other stream is started, and no store that only others read.
PIPELINES = ("edits", "games")
DEFAULT_EDITS = Path("..") / "shared" / "data" / "wikipedia_edits" / PUBLISHED_EDITS_FILE
INGEST_TIMEOUT_SECONDS = 900.0
RUN_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """How much is sent, and from where. `edits` is None where there is no file to replay."""

    games: GamesSettings
    edits: Path | None
    landing_seconds: float = 75.0
    keep_running: bool = False


def find_edits(root: Path, path: Path | None) -> Path | None:
    """The file of edits to replay: `path` or the first in it; without one, the published day beside the checkout."""
    if path is not None:
        if not path.is_dir():
            return path
        return next(iter(sorted(path.glob("*.json*"))), None)
    beside = root / DEFAULT_EDITS
    return beside.resolve() if beside.is_file() else None


class Demo:
    """One run of the demo against the embedded stack of this checkout."""

    def __init__(self, settings: DemoSettings, *, progress: Progress) -> None:
        self._settings = settings
        self._say = progress
        self._home = StackHome.default()
        self.report = DemoReport()

    def run(self) -> DemoReport:
        """Start the stack, send events, wait for the answers, compare them, and stop what was started."""
        with PeakMemory(self._home) as memory:
            try:
                with self._phase("stack"):
                    addresses = stack.up(home=self._home, pipelines=PIPELINES, progress=self._say)
                self.report.addresses = addresses
                self._on_stack(addresses)
                self.report.memory, self.report.memory_samples = memory.peak, list(memory.samples)
            finally:
                if not self._settings.keep_running:
                    with self._phase("stop"):
                        stack.down(home=self._home, progress=self._say)
        return self.report

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.report.seconds[name] = time.monotonic() - started

    def _on_stack(self, addresses: StackAddresses) -> None:
        load_settings(self._home.env_file)
        catalog = load_catalog()
        _refuse_used_lake(catalog)
        with addresses.airflow_api() as airflow:
            with self._phase("ingest"):
                games, edits = self._send(catalog)
            with self._phase("gold"):
                self._build_gold(airflow, catalog)
            with self._phase("health"):
                self.report.health = self._await_health(airflow)
            with self._phase("maintenance"):
                self._maintain(airflow)
            with self._phase("answers"):
                self._answer(catalog, games, edits)

    # -- sending -------------------------------------------------------------------------------------------------

    def _send(self, catalog: Catalog) -> tuple[GamesTruth, EditsTruth | None]:
        sink = landing_sink(catalog.environment.landing)
        landed: dict[str, Published] = {}
        with ThreadPoolExecutor(2) as pool:
            games = pool.submit(self._send_games, sink, landed)
            edits = pool.submit(self._send_edits, sink, landed)
            self._follow(catalog, landed, [games, edits])
            return games.result(), edits.result()

    def _send_games(self, sink: Callable[[str, bytes], None], landed: dict[str, Published]) -> GamesTruth:
        settings = self._settings.games
        by_time = settings.days * 86_400 // settings.buffer_seconds
        about = max(1, (settings.target_events or 1) // settings.events_per_file, by_time)
        pause = self._settings.landing_seconds / about
        self._say(f"games: landing about {settings.target_events:,} generated events, seed {settings.seed}")
        return generate_games(settings, sink, pause_seconds=pause, progress=lambda done: landed.update(games=done))

    def _send_edits(self, sink: Callable[[str, bytes], None], landed: dict[str, Published]) -> EditsTruth | None:
        path = self._settings.edits
        if path is None:
            self._say("edits: no file to replay (give one with `make demo EVENTS=path`)")
            return None
        self._say(f"edits: replaying {path.name}")
        truth = EditsTruth.of_file(path)
        objects = max(1, truth.rows // 500)
        publish(
            replay_lines(path, lines_per_object=500),
            sink,
            pause_seconds=self._settings.landing_seconds / objects,
            progress=lambda done: landed.update(edits=done),
        )
        return truth

    def _follow(self, catalog: Catalog, landed: dict[str, Published], senders: Sequence[Future[Any]]) -> None:
        """Say how far ingest is until everything that has landed is in a complete batch."""
        deadline = time.monotonic() + INGEST_TIMEOUT_SECONDS
        said = ""
        while True:
            done = all(sender.done() for sender in senders)
            counts = {
                name: (landing.objects, _objects_ingested(catalog, name)) for name, landing in sorted(landed.items())
            }
            line = ", ".join(f"{name}: {ingested} of {sent} objects" for name, (sent, ingested) in counts.items())
            if line != said:
                self._say(f"ingested {line}")
                said = line
            if done and counts and all(ingested >= sent for sent, ingested in counts.values()):
                return
            if time.monotonic() > deadline:
                raise TransientError(
                    "INGEST_TIMEOUT",
                    f"After {INGEST_TIMEOUT_SECONDS:.0f} s not everything is ingested: {line}.",
                    hint=f"`make up`, then look at the stream DAGs in Airflow and at {self._home.logs}.",
                )
            time.sleep(3)

    # -- Airflow -------------------------------------------------------------------------------------------------

    def _build_gold(self, airflow: AirflowApi, catalog: Catalog) -> None:
        pipelines = ["games"] + (["edits"] if self._settings.edits else [])
        runs = [(f"gold__{name}", airflow.trigger(f"gold__{name}", conf={})) for name in pipelines]
        for dag_id, run in runs:
            self._await_run(airflow, dag_id, run)
        self._await_live(catalog)

    def _await_live(self, catalog: Catalog) -> None:
        """Wait until the live queries have read every batch of the bronze tables they read."""
        live = catalog.pipeline("games").live
        objects = open_objects(catalog.environment.lake)
        deadline = time.monotonic() + 180
        for table in live:
            landed_at = _last_data_version(catalog, "games", table.reads)
            while (
                live_read_below(PipelineHome(objects, "games"), table.name) <= landed_at and time.monotonic() < deadline
            ):
                time.sleep(1)

    def _await_health(self, airflow: AirflowApi) -> str:
        """The verdict of a health run that begins after all events were in; a red one has a minute to turn green."""
        deadline = time.monotonic() + 60
        while True:
            run = airflow.trigger("stream_health", conf={})
            ended = airflow.wait_for_run("stream_health", run.run_id, timeout_seconds=RUN_TIMEOUT_SECONDS)
            self._say(f"health: run {ended.run_id} {ended.state}")
            if ended.state == "success":
                return "healthy"
            if time.monotonic() > deadline:
                return "not healthy"
            time.sleep(5)

    def _maintain(self, airflow: AirflowApi) -> None:
        self._say("maintenance: OPTIMIZE with Z-order, VACUUM dry run, gold")
        run = airflow.trigger("maintenance__games", conf={})
        self._await_run(airflow, "maintenance__games", run)
        for task in airflow.task_instances("maintenance__games", run.run_id):
            self.report.maintenance.append(f"{task.task_id}: {task.state} in {task.duration_seconds or 0:.0f} s")

    def _await_run(self, airflow: AirflowApi, dag_id: str, run: DagRun) -> None:
        self._say(f"{dag_id}: run {run.run_id}")
        ended = airflow.wait_for_run(dag_id, run.run_id, timeout_seconds=RUN_TIMEOUT_SECONDS)
        if ended.state != "success":
            raise TransientError(
                "DAG_RUN_FAILED",
                f"{dag_id} run {run.run_id} ended {ended.state}.",
                hint=f"Its task log is under {self._home.airflow / 'logs'}.",
            )

    # -- answers -------------------------------------------------------------------------------------------------

    def _answer(self, catalog: Catalog, games: GamesTruth, edits: EditsTruth | None) -> None:
        # Here, so that no other command pays for loading the chart library.
        from sandbox.demo.html_report import write_report

        report = self.report
        connection, tables = connect(catalog)
        sheet = AnswerSheet(connection, tables)
        answer_games(sheet, games)
        if edits is not None and self._settings.edits is not None:
            answer_edits(sheet, edits, published=self._settings.edits.name == PUBLISHED_EDITS_FILE)
        report.answers = sheet.answers
        report.freshness = [
            freshness for name in catalog.pipelines if (freshness := measure_freshness(catalog, name)) is not None
        ]
        report.provenance = check_provenance(catalog, dags=_dag_ids(catalog))
        report.landing_lists = list_requests(self._home.request_log)
        report.html = write_report(connection, tables, report, self._home.root / "reports")


def _dag_ids(catalog: Catalog) -> frozenset[str]:
    streams = [f"{kind}__{name}" for name in catalog.pipelines for kind in ("stream", "gold", "maintenance")]
    return frozenset(streams) | {f"relay__{name}" for name in catalog.relays}


def _objects_ingested(catalog: Catalog, pipeline: str) -> int:
    """Objects in complete batches, by the ledger."""
    rows = Lake(catalog.environment.lake).rows(
        paths.pipeline_control(pipeline, "checkpoint_store"), columns=["source_metadata"]
    )
    if rows is None:
        return 0
    return sum(int(json.loads(text).get("files", 0)) for text in rows.column("source_metadata").to_pylist())


def _last_data_version(catalog: Catalog, pipeline: str, table: str) -> int:
    """The Delta version of a bronze table after the newest batch with rows for it, by the ledger."""
    steps = Lake(catalog.environment.lake).rows(
        paths.pipeline_control(pipeline, "batch_metadata_store"), columns=["table_name", "delta_version"]
    )
    rows = steps.to_pylist() if steps is not None else []
    return max((row["delta_version"] for row in rows if row["table_name"] == table), default=-1)


def _refuse_used_lake(catalog: Catalog) -> None:
    """The demo's truth is about its own events: a lake that holds others cannot be compared with it."""
    if _objects_ingested(catalog, "games") or _objects_ingested(catalog, "edits"):
        raise TransientError(
            "LAKE_NOT_EMPTY",
            "The lake already holds events, so the demo's truth would not be about them alone.",
            hint="`deltaworks demo --fresh` (which `make demo` uses) starts with an empty lake.",
            retryable=False,
        )
