"""Sends the demo's data: landing objects, records for Kafka and Kinesis, and edits replayed from a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import boto3

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StreamState, read_heartbeat
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import TransientError
from deltaworks.sources.objects.file_event_log import file_events_key
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.record_sources import KinesisSourceSpec
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.tables.lake import Lake
from generator.delivery import Delivery, Published, Sink, publish
from generator.engagement import generate_engagement
from generator.engagement_truth import EngagementTruth
from generator.games import generate_games
from generator.market import MarketTruth, market_deliveries
from generator.qos_truth import ViewersTruth
from generator.replay import replay_lines
from generator.settings import GamesSettings
from generator.truth import GamesTruth
from generator.viewers import viewer_deliveries
from sandbox.demo.answers import EditsTruth
from sandbox.demo.collector_delivery import CollectorDelivery, CollectorKill, KillingSink, ReshardingSink
from sandbox.demo.data_settings import DataSettings, GeneratedTruths
from sandbox.demo.landing_sink import pipelines_sink
from sandbox.demo.topic_sink import topic_sink
from sandbox.servers.kafka_broker import BrokerAddress
from sandbox.stack.home import StackHome
from sandbox.stack.processes import stack_processes
from sandbox.stack.supervisor import wait_until
from sandbox.stack.waiting import busy_steps, wait_while_progressing

_LINES_PER_OBJECT = 500
_PATIENCE_SECONDS = 300.0
_POLL_SECONDS = 10.0
_STEPS_TABLE = "batch_metadata_store"
_BATCHES_TABLE = "checkpoint_store"


@dataclass
class EventSender:
    """Sends data and waits until the streams have committed it in complete batches."""

    data_settings: DataSettings
    catalog: Catalog
    home: StackHome
    bootstrap: str | None
    collector_url: str | None
    print_line: Callable[[str], None]
    #: Of the collector that `games` is posted to.
    collector_kill: CollectorKill | None = None
    _sent_events: dict[str, int] = field(default_factory=dict)

    def await_streams(self) -> None:
        """Waits until all streams and relays that receive data poll for events.

        Raises:
            TransientError: INGEST_TIMEOUT, with the names of those that do not poll.
        """
        waiting = {f"stream {name}": paths.pipeline_control(name) for name in self.data_settings.pipelines}
        relays = filter(None, map(self._relay_of, self.data_settings.pipelines))
        waiting |= {f"relay {name}": paths.relay_control(name) for name in relays}
        self.print_line(f"waiting for {', '.join(waiting)}")

        def all_poll() -> bool:
            for name, folder in list(waiting.items()):
                if self._state_in(folder) in ("idle", "running"):
                    del waiting[name]
            return not waiting

        if not wait_until(all_poll, seconds=_PATIENCE_SECONDS, poll_seconds=0.5):
            raise TransientError(
                "INGEST_TIMEOUT",
                f"After {_PATIENCE_SECONDS:.0f} s these do not poll for events: {', '.join(waiting)}.",
                hint=f"`make up`, then look at the stream DAGs in Airflow and at {self.home.logs}.",
            )

    def send_all(self) -> GeneratedTruths:
        """Sends all data concurrently, and returns its truth once everything is in complete batches.

        Raises:
            TransientError: INGEST_TIMEOUT, ingest makes no progress.
            Any error of a sender.
        """
        sink = pipelines_sink(self.catalog)
        with ThreadPoolExecutor(6) as pool:
            games = pool.submit(self._send_games, sink)
            mobile = pool.submit(self._send_mobile)
            engagement = pool.submit(self._send_engagement)
            edits = pool.submit(self._send_edits, sink)
            viewers = pool.submit(self._send_viewers, sink)
            market = pool.submit(self._send_market, sink)
            self._wait_for_senders((games, mobile, engagement, edits, viewers, market))
            return GeneratedTruths(
                games=games.result(),
                mobile=mobile.result(),
                engagement=engagement.result(),
                edits=edits.result(),
                viewers=viewers.result(),
                market=market.result(),
            )

    def _send_games(self, sink: Sink) -> GamesTruth | None:
        settings = self.data_settings.games
        if settings is None:
            return None
        about = _object_count(settings)
        how = "landing" if self.collector_url is None else f"posting to {self.collector_url}"
        self.print_line(f"games: {how} about {settings.target_events:,} generated events, seed {settings.seed}")
        pause = self.data_settings.landing_seconds / about
        if self.collector_url is None:
            truth = generate_games(
                settings, sink, pause_seconds=pause, progress=lambda done: self._record_landed("games", done)
            )
            self._expect_revenue(truth)
            return truth
        # Sent only after the relay runs: it reads a queue's backlog in any order, and of duplicates the first one is
        # counted.
        self._await_relay("games")
        delivery = CollectorDelivery(self.catalog, "games", self.collector_url)
        killing = KillingSink(delivery.post, self.home, url=self.collector_url, objects=about)
        post = killing if self.data_settings.kill_collector else delivery.post
        truth = generate_games(settings, post, pause_seconds=pause)
        delivered = delivery.await_delivery()
        self._sent_events["games"] = delivered.objects
        self.collector_kill = CollectorKill(killing.killed, delivery.post.acknowledged, delivered.delivered)
        self._expect_revenue(truth)
        return truth

    def _expect_revenue(self, truth: GamesTruth) -> None:
        if self.data_settings.with_revenue:
            self._sent_events["revenue"] = truth.bronze_rows["purchase"]

    def _send_mobile(self) -> GamesTruth | None:
        settings = self.data_settings.mobile
        if settings is None:
            return None
        source = self.catalog.pipeline("mobile").source
        if self.collector_url is None or not isinstance(source, KinesisSourceSpec):
            raise TransientError(
                "RECORDS_NOT_SENT",
                "The stack has no collector that writes to the Kinesis stream of `mobile`.",
                hint="`deltaworks down`, then `deltaworks demo` again.",
            )
        # Sent only after the stream runs, because it must be resharded while it is read.
        folder = paths.pipeline_control("mobile")
        wait_until(lambda: self._state_in(folder) in ("idle", "running"), seconds=_PATIENCE_SECONDS, poll_seconds=0.5)
        about = _object_count(settings)
        self.print_line(
            f"mobile: posting about {settings.target_events:,} generated events, which go to the Kinesis stream "
            f"{source.stream}; it is split and merged meanwhile"
        )
        delivery = CollectorDelivery(self.catalog, "mobile", self.collector_url)
        kinesis = boto3.session.Session().client("kinesis", **self.catalog.environment.messaging.boto3_options())
        post = ReshardingSink(delivery.post, kinesis, source.stream, objects=about)
        truth = generate_games(settings, post, pause_seconds=self.data_settings.landing_seconds / about)
        self._sent_events["mobile"] = delivery.await_delivery().delivered
        return truth

    def _await_relay(self, pipeline: str) -> None:
        if relay := self._relay_of(pipeline):
            folder = paths.relay_control(relay)
            wait_until(lambda: self._state_in(folder) is not None, seconds=_PATIENCE_SECONDS, poll_seconds=0.5)

    def _unit(self, pipeline: str) -> str:
        source = self.catalog.pipeline(pipeline).source
        return "objects" if isinstance(source, FileSourceSpec) else "rows" if source.kind == "delta" else "records"

    def _relay_of(self, pipeline: str) -> str | None:
        source = self.catalog.pipeline(pipeline).source
        return source.relay if isinstance(source, FileSourceSpec) else None

    @cached_property
    def _objects(self) -> ObjectStore:
        return open_objects(self.catalog.environment.lake)

    def _state_in(self, folder: str) -> StreamState | None:
        """Returns the stream or relay state from the heartbeat in a control folder; None without a heartbeat."""
        beat = read_heartbeat(self._objects, paths.heartbeat(folder))
        return None if beat is None else beat.state

    def _send_engagement(self) -> EngagementTruth | None:
        settings = self.data_settings.engagement
        if settings is None:
            return None
        if self.bootstrap is None:
            raise TransientError(
                "RECORDS_NOT_SENT",
                "The stack has no broker to send the engagement's records to.",
                hint="`deltaworks down`, then `deltaworks demo` again.",
            )
        self.print_line(
            f"engagement: sending {settings.activities:,} generated activities, and requests that change them"
        )
        with topic_sink(BrokerAddress(self.bootstrap)) as send:
            truth = generate_engagement(settings, send)
        self._sent_events["engagement"] = truth.activities + truth.requests + truth.malformed
        return truth

    def _send_edits(self, sink: Sink) -> EditsTruth | None:
        path = self.data_settings.edits
        if path is None:
            if self.data_settings.games is not None:
                self.print_line("edits: not run, there is no file to replay (give one with `make demo EVENTS=path`)")
            return None
        self.print_line(f"edits: replaying {path.name}")
        truth = EditsTruth.from_file(path)
        publish(
            replay_lines(path, lines_per_object=_LINES_PER_OBJECT),
            sink,
            pause_seconds=self.data_settings.landing_seconds / max(1, truth.rows // _LINES_PER_OBJECT),
            progress=lambda done: self._record_landed("edits", done),
        )
        return truth

    def _send_viewers(self, sink: Sink) -> ViewersTruth | None:
        settings = self.data_settings.viewers
        if settings is None:
            return None
        self.print_line(
            f"{', '.join(self.data_settings.viewers_settings)}: landing {settings.views:,} generated views, "
            f"seed {settings.seed}"
        )
        truth = ViewersTruth()
        self._land_deliveries(list(viewer_deliveries(settings, truth)), self.data_settings.viewers_settings, sink)
        return truth

    def _send_market(self, sink: Sink) -> MarketTruth | None:
        settings = self.data_settings.market
        if settings is None:
            return None
        self.print_line(
            f"{', '.join(self.data_settings.market_settings)}: landing a generated market, seed {settings.seed}"
        )
        truth = MarketTruth()
        self._land_deliveries(list(market_deliveries(settings, truth)), self.data_settings.market_settings, sink)
        return truth

    def _land_deliveries(self, deliveries: Sequence[Delivery], pipelines: Sequence[str], sink: Sink) -> None:
        """Lands the objects of these pipelines in order and counts them per pipeline."""
        pause = self.data_settings.landing_seconds / max(1, len(deliveries))
        for pipeline in pipelines:
            own = [delivery for delivery in deliveries if delivery.key.startswith(f"{pipeline}/")]
            publish(own, sink, pause_seconds=pause, progress=partial(self._record_landed, pipeline))

    def _record_landed(self, pipeline: str, done: Published) -> None:
        self._sent_events[pipeline] = done.objects

    def _wait_for_senders(self, senders: tuple[Future[Any], ...]) -> None:
        """Prints progress until everything sent is in a complete batch."""
        said = ""

        def all_ingested() -> bool:
            nonlocal said
            ended = all(sender.done() for sender in senders)
            for sender in senders:
                if sender.done():
                    sender.result()
            counts = {
                name: (sent, ingested_count(self.catalog, name)) for name, sent in sorted(self._sent_events.items())
            }
            line = ", ".join(
                f"{name}: {done:,} of {sent:,} {self._unit(name)}" for name, (sent, done) in counts.items()
            )
            if line and line != said:
                self.print_line(f"ingested {line}")
                said = line
            return ended and all(done >= sent for sent, done in counts.values())

        stalled = wait_while_progressing(
            all_ingested,
            self._progress_marker,
            stall_seconds=_PATIENCE_SECONDS,
            poll_seconds=2.0,
            marker_seconds=_POLL_SECONDS,
        )
        if stalled is not None:
            raise TransientError(
                "INGEST_TIMEOUT",
                f"No progress for {stalled.seconds:.0f} s, and not everything is ingested: {said}.",
                hint=f"`make up`, then look at the stream DAGs in Airflow and at {self.home.logs}.",
            )

    def _progress_marker(self) -> Hashable:
        """Returns a value that changes with every ingested object, batch, Delta commit or stream state."""
        tables = [paths.pipeline_control(name, _STEPS_TABLE) for name in self.data_settings.pipelines]
        tables += [file_events_key(relay) for relay in self.catalog.relays]
        versions = tuple(_version(self.catalog, key) for key in tables)
        streams = [process.pid for process in stack_processes(self.home) if process.kind == "stream"]
        # An idle stream polls for objects, which also uses CPU time.
        work = busy_steps(streams) if self._any_busy() else 0
        return tuple(sorted(self._sent_events.items())), versions, tuple(sorted(streams)), work

    def _any_busy(self) -> bool:
        return any(self._state_in(paths.pipeline_control(name)) != "idle" for name in self.data_settings.pipelines)


def _object_count(settings: GamesSettings) -> int:
    """Returns the approximate number of objects that the generator yields."""
    by_time = settings.days * 86_400 // settings.buffer_seconds
    return max(1, (settings.target_events or 1) // settings.events_per_file, by_time)


def ingested_count(catalog: Catalog, pipeline: str) -> int:
    """Returns the number of objects or records in complete batches, by the ledger."""
    rows = Lake(catalog.environment.lake).rows(
        paths.pipeline_control(pipeline, _BATCHES_TABLE), columns=["source_metadata"]
    )
    if rows is None:
        return 0
    sources: list[Mapping[str, Any]] = [json.loads(text) for text in rows.column("source_metadata").to_pylist()]
    return sum(int(source.get("files", source.get("records", 0))) for source in sources)


def _version(catalog: Catalog, key: str) -> int:
    table = Lake(catalog.environment.lake).open(key)
    return -1 if table is None else int(table.version())
