"""`player_offers`: seconds from a player's event to the offer's message in a queue, at 50,000 events a minute.

Deltaworks: batches of the shipped pipeline `games` at its declared trigger, parsed and committed as a stream's tasks do
but without Spark, and its feed `player_offers` at its declared interval. Baseline: the same rows, committed before, and
one query of the view: the least that any delivery of this answer costs.

The lake is on local disk, and the queue a moto server in another process. Files that land, their discovery and Spark's
scheduling come on top; `freshness` measures those.
"""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure
from benchmarks.relay import running_server

if TYPE_CHECKING:
    from deltaworks.feeds.messages import Message
    from deltaworks.feeds.sinks import Sink
    from deltaworks.feeds.sinks.base import SendOutcome
    from deltaworks.specs.catalog import Catalog

_EVENTS_PER_MINUTE = 50_000
#: Share of the events of `generator.games` that the view reads: level_complete, level_fail and purchase.
_COUNTED_NAMES = ("level_complete",) * 14 + ("level_fail",) * 6 + ("purchase",)
_NAMES = (*_COUNTED_NAMES, *("level_start",) * 59)
_PLAYERS = 12_000
_WINDOW_SECONDS = 900


def run(options: Options) -> list[Result]:
    """Measures both sides for so many minutes of events each."""
    with running_server("benchmarks.queue_server") as endpoint:
        sides = _Sides(endpoint, options.minutes)
        comparison = Comparison(
            metric="event_to_queue_p95_vs_view_query",
            ours=Side("feed", sides.feed),
            other=Side("view_query", sides.view_query),
            sizes={"events_per_minute": _EVENTS_PER_MINUTE, "players": _PLAYERS, "minutes": options.minutes},
        )
        return measure(BENCHMARK.name, [comparison], repeats=options.repeats, warm=True, progress=options.progress)


@dataclass
class _Sides:
    endpoint: str
    minutes: float

    def feed(self, clock: Clock) -> None:
        """Seconds from event to queue: the 95th percentile is the side's result."""
        with _running_game() as game:
            sink = _TimedSink(game.open_sink(self.endpoint), game)
            # No event leaves the window during the run, so that each change has an event as its cause.
            window = max(30.0, _WINDOW_SECONDS - 60 * (self.minutes + 2))
            game.commit(game.events(window, until=time.time(), names=_COUNTED_NAMES))
            feed = game.open_feed(sink)
            feed.run_once()
            game.causes.clear()
            sink.delays.clear()
            stop = threading.Event()
            checks: list[float] = []
            thread = threading.Thread(target=_run_feed, args=(feed, game, stop, checks), daemon=True)
            thread.start()
            ends_at, landed_at = time.time() + 60 * self.minutes, time.time()
            while time.time() < ends_at:
                time.sleep(max(0.0, landed_at + game.trigger_seconds - time.time()))
                now = time.time()
                game.commit(game.events(now - landed_at, until=now))
                landed_at = now
            time.sleep(2 * game.every_seconds)
            stop.set()
            thread.join()
            delays = sorted(sink.delays) or [0.0]
            sink.close()
        clock.seconds = delays[int(0.95 * (len(delays) - 1))]
        clock.record(p50=delays[len(delays) // 2], longest=delays[-1], messages=len(delays), longest_check=max(checks))

    def view_query(self, clock: Clock) -> None:
        """Seconds of one query of the view over a full window."""
        from deltaworks.tables.query import connect

        with _running_game() as game:
            game.commit(game.events(_WINDOW_SECONDS, until=time.time(), names=_COUNTED_NAMES))
            statement = "SELECT * FROM games.player_offers"
            with clock:
                connection, _ = connect(game.catalog, statement=statement)
                with connection:
                    clock.record(rows=connection.sql(statement).to_arrow_table().num_rows)


def _run_feed(feed: Any, game: _Game, stop: threading.Event, checks: list[float]) -> None:
    while not stop.is_set():
        started = time.perf_counter()
        feed.run_once()
        checks.append(time.perf_counter() - started)
        stop.wait(game.every_seconds)


@dataclass
class _Game:
    """The pipeline `games` over a lake in a folder.

    `causes` has the first event of each player in the newest committed batch that has any: the cause of a new offer.
    """

    catalog: Catalog
    seq: int = 0
    causes: dict[str, float] = field(default_factory=dict)
    _batch: dict[str, float] = field(default_factory=dict)
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    trigger_seconds: float = 15
    every_seconds: float = 5

    def events(self, seconds: float, *, until: float, names: Sequence[str] = _NAMES) -> Iterator[tuple[float, bytes]]:
        """Yields the events of so many seconds at the declared rate, of these names only, with their times."""
        from generator.wire import event_json, request_json

        count = int(_EVENTS_PER_MINUTE * seconds / 60 * len(names) / len(_NAMES))
        for number in range(count):
            at = until - seconds * (1 - number / count)
            name = self.rng.choice(names)
            player = f"p-{self.rng.randrange(_PLAYERS)}"
            params = {"event_id": uuid.uuid4().hex, "device_id": f"d-{player}", "player_id": player}
            params |= {"level": 7, "amount": 4.99, "country": "DE", "platform": "ios"}
            if name != "level_start":
                self._batch.setdefault(player, at)
            yield at, request_json(event_json(name, int(at), params), number, "203.0.113.7")

    def commit(self, events: Iterator[tuple[float, bytes]]) -> None:
        """Parses the events as one batch, and appends the rows of each table."""
        from deltalake import write_deltalake

        from deltaworks.control import paths
        from deltaworks.events.chunks import BatchMetadata, Payload
        from deltaworks.events.parse import Parser
        from deltaworks.events.redaction_keys import load_redaction_keys
        from deltaworks.tables.lake import Lake

        spec, storage = self.catalog.pipeline("games"), self.catalog.environment.lake
        now_us, self.seq = int(time.time() * 1_000_000), self.seq + 1
        payload = Payload(self.seq, f"games/{self.seq}", b"".join(data for _, data in events), arrived_at_us=now_us)
        parser = Parser(spec, redaction_keys=load_redaction_keys(spec, storage))
        lake = Lake(storage)
        for name, rows in parser.parse([payload], BatchMetadata(self.seq, now_us, "bench")):
            key = paths.table("games", name)
            partition = "quarantine_date" if name == "quarantine" else "event_date"
            lake.ensure(key, rows.schema, user_metadata="{}", partition_by=[partition])
            write_deltalake(storage.uri(key), rows, mode="append", partition_by=[partition])
        self.causes |= self._batch
        self._batch = {}

    def open_sink(self, endpoint: str) -> Sink:
        import boto3

        from deltaworks.feeds.sinks import SqsSink
        from deltaworks.specs.feeds import SqsSinkSpec
        from deltaworks.specs.storage import AwsSpec

        os.environ.setdefault("AWS_ACCESS_KEY_ID", "bench")
        os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "bench")
        messaging = AwsSpec(endpoint=endpoint)
        client: Any = boto3.session.Session().client("sqs", **messaging.boto3_options())
        url = client.create_queue(QueueName=uuid.uuid4().hex)["QueueUrl"]
        return SqsSink(SqsSinkSpec(kind="sqs", queue_url=url), messaging)

    def open_feed(self, sink: Sink) -> Any:
        from deltaworks.control.objects import open_objects
        from deltaworks.feeds.process import Feed

        spec = self.catalog.pipeline("games")
        declaration = next(feed for feed in spec.feeds if feed.name == "player_offers")
        self.every_seconds, self.trigger_seconds = declaration.every_seconds, spec.stream.trigger_seconds
        return Feed(self.catalog, spec, declaration, open_objects(self.catalog.environment.lake), sink)


@dataclass
class _TimedSink:
    """A sink that records how long after its cause the queue has accepted a player's offer."""

    sink: Sink
    game: _Game
    delays: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        from deltaworks.events.redaction_keys import lookup_tokens

        players = [f"p-{number}" for number in range(_PLAYERS)]
        tokens = lookup_tokens(self.game.catalog, "players", kind="player", values=players)
        self.players = {token: player for player, token in tokens.items()}

    def send(self, messages: Sequence[Message]) -> SendOutcome:
        import orjson

        outcome, now = self.sink.send(messages), time.time()
        for message in messages:
            if message.op == "upsert" and message.id not in outcome.failed:
                cause = self.game.causes.get(self.players[orjson.loads(message.key)["player_id"]])
                # Without a cause, the offer follows an event that has left the window.
                self.delays += [] if cause is None else [now - cause]
        return outcome

    def close(self) -> None:
        self.sink.close()


@contextmanager
def _running_game() -> Iterator[_Game]:
    import shutil

    from deltaworks.gold.model_tables import refresh_external_inputs
    from deltaworks.specs.catalog import PROJECT_ROOT
    from deltaworks.testing import load_project

    with TemporaryDirectory(prefix="deltaworks-offers-") as folder:
        include = Path(folder) / "project" / "include"
        shutil.copytree(PROJECT_ROOT / "include" / "pipelines" / "games", include / "pipelines" / "games")
        shutil.copytree(PROJECT_ROOT / "include" / "relays", include / "relays")
        catalog = load_project(Path(folder) / "project", lake=Path(folder), relays=[])
        refresh_external_inputs(catalog, "games")
        yield _Game(catalog)


BENCHMARK = Benchmark(
    name="player_offers",
    summary="seconds from a player's event to their offer in a queue, against one query of the view",
    run=run,
    tiny=TinySize(constants={"_EVENTS_PER_MINUTE": 2_000, "_PLAYERS": 100, "_WINDOW_SECONDS": 30}),
)
