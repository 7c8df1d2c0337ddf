"""The simulated game as objects that land: players live their days, and what they do is sent, spoilt and packed.

`eventTime` is stamped by the server when the collector first receives an event. Collectors hand on within seconds,
except what they keep back: a late event is delivered long after its time. A duplicate is a client that sends again:
same `event_id`, same parameters, a later `eventTime`. So the second sending of a late event can be the first
to arrive: whichever is delivered first counts.
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
    """The objects in order of delivery; the same for the same settings, byte by byte.

    Memory holds the players, one day's plan of sessions and what is not yet delivered, not the events of a run.

    Args:
        counter: counts the truth as objects are yielded; it is whole once the last one was.
    """
    # a source of chance of its own for the packing: other file sizes leave the events as they are
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
    """Send every object to `sink` in order of delivery and return the truth about them."""
    counter = TruthCounter(settings)
    publish(deliveries(settings, counter), sink, pause_seconds=pause_seconds, progress=progress)
    return counter.truth()


def write_files(settings: GamesSettings, directory: Path) -> GamesTruth:
    """Write every object under `directory` by its key, and `truth.json` beside them."""
    directory.mkdir(parents=True, exist_ok=True)
    truth = generate_games(settings, directory_sink(directory))
    truth.write(directory / "truth.json")
    return truth


def _records_by_delivery(settings: GamesSettings) -> Iterator[Record]:
    """All pieces in order of delivery."""
    rng = Random(f"games/{settings.seed}")
    maker = RecordMaker(settings, rng)
    spool: list[tuple[float, int, Record]] = []
    number = count()
    for start in _session_starts(settings, rng):
        # nothing of a session is delivered before it starts, so what is due before that is complete
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
