"""Simulates a mobile game as landed objects. Simulates players' sessions, sends their events, corrupts some at
configured rates, and packs them into objects.

The server sets `eventTime` when the collector first receives an event. Collectors deliver within seconds, except late
events, which are delivered long after their time. A duplicate is a second send by the client with the same `event_id`
and parameters and a later `eventTime`. The duplicate of a late event can therefore arrive before the original; the
expected results count the copy that was delivered first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random

from generator.delivery import Delivery, Published, Sink, directory_sink, publish
from generator.packing import ObjectPacker
from generator.population import SessionStart, create_players, sessions_of_day
from generator.records import Record, RecordMaker
from generator.session import Session
from generator.settings import GamesSettings
from generator.truth import GamesTruth, TruthCounter


def deliveries(settings: GamesSettings, counter: TruthCounter | None = None) -> Iterator[Delivery]:
    """Yields the objects in order of delivery, byte-identical for the same settings.

    Keeps the players, one day's sessions and undelivered events in memory, not all events.

    Args:
        counter: counts the expected results as objects are yielded; complete after the last one.
    """
    # a separate random source for packing, so that file sizes do not affect events
    packer = ObjectPacker(settings, Random(f"packing/{settings.seed}"), counter or TruthCounter(settings))
    for record in _records_by_delivery(settings):
        yield from packer.add(record)
    yield from packer.finish()


def generate_games(
    settings: GamesSettings,
    sink: Sink,
    *,
    pause_seconds: float = 0.0,
    progress: Callable[[Published], None] | None = None,
) -> GamesTruth:
    """Sends every object to `sink` in order of delivery and returns the expected results."""
    counter = TruthCounter(settings)
    publish(deliveries(settings, counter), sink, pause_seconds=pause_seconds, progress=progress)
    return counter.truth()


def write_files(settings: GamesSettings, directory: Path) -> GamesTruth:
    """Writes every object under `directory` by key, and the expected results as `truth.json`."""
    directory.mkdir(parents=True, exist_ok=True)
    truth = generate_games(settings, directory_sink(directory))
    truth.write(directory / "truth.json")
    return truth


def _records_by_delivery(settings: GamesSettings) -> Iterator[Record]:
    """Yields all records in order of delivery."""
    rng = Random(f"games/{settings.seed}")
    maker = RecordMaker(settings, rng)
    spool: list[tuple[float, int, Record]] = []
    number = count()
    for start in _session_starts(settings, rng):
        # a session's events are never delivered before it starts, so all records due earlier are known
        while spool and spool[0][0] < start.at:
            yield heapq.heappop(spool)[2]
        events = Session(rng, start).play()
        for record in maker.records(start, f"s-{rng.getrandbits(64):016x}", events):
            heapq.heappush(spool, (record.deliver_at, next(number), record))
    while spool:
        yield heapq.heappop(spool)[2]


def _session_starts(settings: GamesSettings, rng: Random) -> Iterator[SessionStart]:
    players = create_players(settings, rng)
    for day in range(settings.days):
        yield from sessions_of_day(settings, rng, players, day)
