"""Runs the demo: sends real and generated events through all pipelines and compares each result with the
expected one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deltaworks.airflow_client.api import AirflowApi
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.errors import TransientError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import HEALTH_DAG, dag_id
from deltaworks.specs.groups import group_dag_id, stream_groups
from deltaworks.specs.project import load_catalog
from deltaworks.specs.project_folder import load_settings
from deltaworks.specs.schedules import SCHEDULES_VARIABLE
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import connect
from generator.engagement_settings import EngagementSettings
from generator.market import MarketSettings
from generator.settings import GamesSettings
from generator.viewers import ViewersSettings
from sandbox.demo.answers import (
    PUBLISHED_EDITS_FILE,
    AnswerSheet,
    answer_collector,
    answer_edits,
    answer_games,
    answer_mobile,
    answer_revenue,
)
from sandbox.demo.collector_delivery import CollectorKill
from sandbox.demo.dashboards import write_dashboards
from sandbox.demo.data_settings import DataSettings, GeneratedTruths
from sandbox.demo.earlier_declaration import EarlierDeclaration
from sandbox.demo.engagement_answers import answer_engagement
from sandbox.demo.erasure import Erasure
from sandbox.demo.event_sender import EventSender, ingested_count
from sandbox.demo.freshness import compute_freshness, object_ages
from sandbox.demo.job_runs import Job, JobRuns
from sandbox.demo.live_tables import await_live
from sandbox.demo.market_answers import answer_alert, answer_filings, answer_stocks
from sandbox.demo.memory import PeakMemory
from sandbox.demo.night import GOLD, NIGHT, Night
from sandbox.demo.phases import Phases
from sandbox.demo.provenance_check import check_provenance
from sandbox.demo.recovery import Recovery
from sandbox.demo.report import START_SECONDS, DemoReport
from sandbox.demo.tokens import get_tokens
from sandbox.demo.video_answers import answer_cdn, answer_delivery, answer_video
from sandbox.servers.landing import list_requests
from sandbox.stack import stack
from sandbox.stack.home import StackHome
from sandbox.stack.report import StackAddresses

Progress = Callable[[str], None]
DEFAULT_EDITS = Path("..") / "shared" / "data" / "wikipedia_edits" / PUBLISHED_EDITS_FILE
#: Variables of a stack that ends with the demo. DAG files are not parsed again after the change of a declaration,
#: because parsing takes four CPU seconds and the change adds no DAG. Schedules are off, because the demo starts every
#: job itself, after all events are ingested.
_DEMO_VARIABLES = {"AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "3600", SCHEDULES_VARIABLE: "off"}
_HEALTH = HEALTH_DAG
_HEALTH_TRIES = 4
_MEMORY_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """The data to send, as in `DataSettings`; None omits a pipeline.

    With `wait_for_streams`, sending starts after all streams poll for events, to measure a steady rate. With
    `with_erasure`, a player is erased at the end.
    """

    games: GamesSettings | None
    mobile: GamesSettings | None = None
    with_revenue: bool = False
    engagement: EngagementSettings | None = None
    edits: Path | None
    viewers: ViewersSettings | None = None
    with_player_events: bool = False
    market: MarketSettings | None = None
    with_share_prices: bool = False
    landing_seconds: float = 20.0
    wait_for_streams: bool = False
    keep_running: bool = False
    kill_collector: bool = False
    with_erasure: bool = False

    @property
    def data_settings(self) -> DataSettings:
        """Settings of the data to send."""
        return DataSettings(
            games=self.games,
            mobile=self.mobile,
            with_revenue=self.with_revenue,
            engagement=self.engagement,
            edits=self.edits,
            viewers=self.viewers,
            with_player_events=self.with_player_events,
            market=self.market,
            with_share_prices=self.with_share_prices,
            landing_seconds=self.landing_seconds,
            kill_collector=self.kill_collector,
        )


def find_edits(root: Path, path: Path | None) -> Path | None:
    """Returns the file of edits to replay: `path`, or the first file in it if it is a folder.

    By default it is the published day next to the checkout, None if that file does not exist.
    """
    if path is not None:
        if not path.is_dir():
            return path
        return next(iter(sorted(path.glob("*.json*"))), None)
    default = root / DEFAULT_EDITS
    return default.resolve() if default.is_file() else None


class Demo:
    """One run of the demo on the embedded stack of this checkout."""

    def __init__(self, settings: DemoSettings, *, progress: Progress) -> None:
        self._settings = settings
        self._say = progress
        checkout = StackHome.default()
        self._declaration = EarlierDeclaration(checkout.project, checkout.root / "demo_project")
        self._home = StackHome.at(checkout.root, project=self._declaration.folder)
        self._phases = Phases(self._home)
        self._night, self._recovery, self._erasure = Night(), Recovery(), Erasure()
        # Only later requests count, because the request log is kept over restarts of the stack.
        self._began = utc_now()
        self.report = DemoReport()

    def run(self) -> DemoReport:
        """Starts the stack, sends events, runs jobs, compares results, and stops the stack."""
        self.report.phases = self._phases.all
        with PeakMemory(self._home, interval_seconds=_MEMORY_SECONDS) as memory:
            try:
                with self._phases.phase("stack"):
                    self._declaration.create()
                    # Runs only pipelines that receive events, so no other stream or store starts.
                    addresses = stack.up(
                        home=self._home,
                        pipelines=self._settings.data_settings.pipelines,
                        variables={} if self._settings.keep_running else _DEMO_VARIABLES,
                        progress=self._say,
                    )
                self.report.addresses = addresses
                self._run_on_stack(addresses)
                self.report.memory, self.report.memory_samples = memory.peak, list(memory.samples)
            finally:
                self._declaration.complete()
                if not self._settings.keep_running:
                    with self._phases.phase("stop"):
                        stack.down(home=self._home, progress=self._say)
        return self.report

    def _run_on_stack(self, addresses: StackAddresses) -> None:
        load_settings(self._home.env_file)
        catalog = load_catalog(skip_invalid=True)
        _require_empty_lake(catalog)
        sending = EventSender(
            data_settings=self._settings.data_settings,
            catalog=catalog,
            home=self._home,
            bootstrap=addresses.kafka_bootstrap,
            collector_url=addresses.collector_url,
            print_line=self._say,
        )
        with addresses.airflow_api() as airflow:
            if self._settings.wait_for_streams:
                with self._phases.phase("streams"):
                    sending.await_streams()
            with self._phases.phase("ingest"):
                truths = sending.send_all()
            with self._phases.phase("jobs"):
                self._declaration.complete()
                catalog = load_catalog(skip_invalid=True)
                self._run_jobs(airflow, catalog)
            with self._phases.phase("answers"):
                sheet = self._compute_answers(catalog, truths, sending.collector_kill)
            if self._settings.with_erasure:
                with self._phases.phase("erasure"):
                    self._say("players: the erasure of a player begins")
                    self._erasure.run(catalog)
                    self._erasure.answer(sheet)
            with self._phases.phase("reports"):
                self._write_reports(catalog)

    # -- Airflow -------------------------------------------------------------------------------------------------

    def _run_jobs(self, airflow: AirflowApi, catalog: Catalog) -> None:
        """Runs gold, mutations, maintenance and health jobs, and waits for live tables."""
        jobs = JobRuns(airflow, self._home, say=self._say)
        chains = []
        if self._settings.games is not None:
            *recovery, replay = self._recovery.jobs(catalog)
            replay = dataclasses.replace(replay, then=lambda: self._night.prepare(catalog, self._home))
            # The night builds gold of what they changed.
            chains.append([*recovery, replay, Job(NIGHT, {"dry_run": False})])
        if self._settings.with_revenue:
            # Last, so that it shows whether its stream has read a row again that maintenance moved to another file.
            chains[0].append(Job("revenue__gold"))
        if self._settings.engagement is not None:
            chains.append([Job("engagement__mutations", {"dry_run": False}), Job("engagement__gold")])
        what = self._settings.data_settings
        chains += [[Job(dag_id(name, "gold"))] for name in ("edits", "mobile") if name in what.pipelines]
        chains += [
            [Job(dag_id(name, "gold")) for name in names]
            for names in (what.viewers_settings, what.market_settings)
            if names
        ]
        self._say("recovery, gold, mutations and maintenance (OPTIMIZE, VACUUM) begin")
        jobs.run(*chains, [Job(_HEALTH, must_succeed=False)])
        for ended in jobs.ended:
            if ended.job.dag_id == NIGHT:
                self._night.read(airflow, ended)
                self._say(f"{GOLD}: a backfill of one date begins")
                self._night.backfill(airflow, catalog)
        if not await_live(catalog, what.pipelines):
            self._say("live: not everything has been read")
        self.report.health = self._health(jobs)
        self.report.jobs = [(ended.job.dag_id, ended.seconds) for ended in jobs.ended]
        self.report.maintenance = [line for ended in jobs.ended if ended.job.dag_id == NIGHT for line in ended.tasks]

    def _health(self, jobs: JobRuns) -> str:
        """Returns the result of the latest health run, which started after all events were ingested.

        An unhealthy result is retried, because a busy machine can delay a stream.
        """
        for _ in range(_HEALTH_TRIES):
            newest = [ended for ended in jobs.ended if ended.job.dag_id == _HEALTH][-1]
            if newest.run.state == "success":
                return "healthy"
            time.sleep(5)
            jobs.run([Job(_HEALTH, must_succeed=False)])
        return "not healthy"

    # -- answers -------------------------------------------------------------------------------------------------

    def _compute_answers(
        self, catalog: Catalog, truths: GeneratedTruths, collector: CollectorKill | None
    ) -> AnswerSheet:
        report = self.report
        connection, tables = connect(catalog)
        sheet = AnswerSheet(connection, tables)
        self._answer_events(sheet, catalog, truths, collector)
        self._answer_files(sheet, catalog, truths)
        report.answers = sheet.answers
        file_pipelines = [name for name, spec in catalog.pipelines.items() if isinstance(spec.source, FileSourceSpec)]
        ages = {name: object_ages(catalog, name) for name in file_pipelines}
        report.freshness, report.steady_freshness = (
            [
                one
                for name, own in ages.items()
                if (one := compute_freshness(name, own, start_seconds=start)) is not None
            ]
            for start in (0.0, START_SECONDS)
        )
        report.provenance = check_provenance(catalog, dags=_dag_ids(catalog))
        report.landing_lists = list_requests(self._home.request_log, since=self._began)
        return sheet

    def _write_reports(self, catalog: Catalog) -> None:
        # Imported here, because the chart library loads slowly.
        from sandbox.demo.html_report import write_report

        reports, (connection, tables) = self._home.root / "reports", connect(catalog)
        pipelines = self._settings.data_settings.pipelines
        self.report.dashboards = write_dashboards(catalog, pipelines, connection, reports / "dashboards")
        self.report.html = write_report(connection, tables, self.report, reports)

    def _answer_events(
        self, sheet: AnswerSheet, catalog: Catalog, truths: GeneratedTruths, collector: CollectorKill | None
    ) -> None:
        if truths.games is not None:
            answer_games(sheet, truths.games)
            self._recovery.answer(sheet, catalog, truths.games, posted=collector is not None)
            if collector is not None and collector.killed:
                answer_collector(sheet, collector)
            self._night.answer(sheet, catalog)
        if truths.mobile is not None:
            answer_mobile(sheet, truths.mobile)
        if truths.games is not None and self._settings.with_revenue:
            answer_revenue(sheet, truths.games, compactions=_compactions(catalog))
        if truths.engagement is not None:
            answer_engagement(sheet, truths.engagement.tokenized(get_tokens(catalog, "engagement")))

    def _answer_files(self, sheet: AnswerSheet, catalog: Catalog, truths: GeneratedTruths) -> None:
        if truths.edits is not None and self._settings.edits is not None:
            answer_edits(sheet, truths.edits, published=self._settings.edits.name == PUBLISHED_EDITS_FILE)
        if truths.viewers is not None:
            answer_cdn(sheet, truths.viewers)
        if truths.viewers is not None and self._settings.with_player_events:
            answer_video(sheet, truths.viewers)
            answer_delivery(sheet, truths.viewers)
        if truths.market is not None:
            answer_filings(sheet, truths.market)
        if truths.market is not None and self._settings.with_share_prices:
            answer_stocks(sheet, truths.market)
            answer_alert(sheet, catalog)


def _compactions(catalog: Catalog) -> int:
    """Returns the number of compactions of the table that `revenue` reads."""
    lake, key = Lake(catalog.environment.lake), paths.table("games", "purchase")
    table = lake.open(key)
    return 0 if table is None else sum(commit.get("operation") == "OPTIMIZE" for commit in table.history())


def _dag_ids(catalog: Catalog) -> frozenset[str]:
    kinds = ("stream", "gold", "maintenance", "mutations", "restore", "reprocess", "replay", "demo")
    ids = [dag_id(name, kind) for name in catalog.pipelines for kind in kinds]
    groups = {group_dag_id(name) for name in stream_groups(catalog)}
    return frozenset(ids) | groups | {dag_id(name, "relay") for name in catalog.relays}


def _require_empty_lake(catalog: Catalog) -> None:
    """Raises if the lake has events, because the truth covers only the demo's own."""
    if any(ingested_count(catalog, name) for name in catalog.pipelines):
        raise TransientError(
            "LAKE_NOT_EMPTY",
            "The lake already holds events, so the demo's truth would not be about them alone.",
            retryable=False,
        )
