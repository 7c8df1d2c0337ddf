"""One process of a collector as it runs: its door and spool, the drain of the spool, and its records in the lake.

A folder of the spool that nobody holds is drained by whoever finds it: it is of a process that has gone and left
something, or of a pod that there is no longer.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from collector.drain import VAULT, Drain, Way, spool_folders
from collector.folder import DAMAGED_SUFFIX, SpoolFolder, size_of
from collector.process import Background, CollectorProcess
from collector.recovery import Recovered, recover
from collector.sinks.vault import VaultSink
from collector.spool import Spool
from deltaworks.control.background import BackgroundThread
from deltaworks.control.clock import iso_now
from deltaworks.control.health.collector_beats import CollectorBeats, Taken
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.collector import CollectorBeat, SourceBeat
from deltaworks.errors import ConcurrencyError
from deltaworks.operations.collector_strips import CollectorStrips, SuppressionReload
from deltaworks.specs.collector import CollectorSpec

log = logging.getLogger(__name__)
_LOOK_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collecting:
    """What a process of a collector works with."""

    spec: CollectorSpec
    ways: dict[str, Way]
    objects: ObjectStore
    root: Path
    beat_seconds: float = 10.0
    strips: CollectorStrips = field(default_factory=CollectorStrips)

    def vault_of(self, folder: SpoolFolder) -> VaultSink | None:
        """Where what is sealed in a folder belongs; None where nothing is."""
        vault = self.strips.vault
        return None if vault is None else VaultSink(vault, folder.collector_name)

    def run(self) -> int:
        """Take events until a signal; the exit code. Holds the first folder of the spool that nobody holds.

        Raises:
            DeltaworksError: SPOOL_FOLDER_DAMAGED, SPOOL_SEGMENT_UNKNOWN, SPOOL_PROGRESS_UNREADABLE.
        """
        number = 0
        while True:
            process = _Process(self, self.root / f"w{number}")
            try:
                return process.run()
            except ConcurrencyError as error:
                if error.condition != "SPOOL_LOCKED":
                    raise
                number += 1


class _Process(CollectorProcess):
    """The process that holds one folder, and what runs beside its door."""

    def __init__(self, collecting: Collecting, folder: Path) -> None:
        super().__init__(collecting.spec, folder, attach=self._beside, strips=collecting.strips.by_source)
        self._collecting = collecting

    def _beside(
        self, _spec: CollectorSpec, folder: SpoolFolder, spool: Spool, _recovered: Recovered
    ) -> Sequence[Background]:
        vault = self._collecting.vault_of(folder)
        drain = Drain(folder, self._collecting.ways, vault=vault, durable=spool.durable, freed=spool.freed)
        self._metrics.sinks = drain.sinks
        drained = DrainedFolder(self._collecting, folder, drain, next_seq=spool.next_seq, taken=self._taken)
        beside: list[Background] = [Leftovers(self._collecting, own=folder.path), drained]
        if self._collecting.strips.by_source:
            beside.append(SuppressionReload(self._collecting.strips, self._collecting.objects))
        return beside

    def _taken(self) -> Taken:
        taken: dict[str, dict[str, int]] = {}
        for (source, verdict), count in list(self._app.metrics.events.items()):
            taken.setdefault(source, {})[verdict] = count
        return taken


class DrainedFolder:
    """A folder that is drained, and its heartbeat."""

    def __init__(
        self,
        collecting: Collecting,
        folder: SpoolFolder,
        drain: Drain,
        *,
        next_seq: Callable[[], int],
        taken: Callable[[], Taken] = lambda: {},
    ) -> None:
        self._collecting = collecting
        self._folder = folder
        self._drain = drain
        self._next_seq = next_seq
        self._started_at = iso_now()
        self._ended = False
        self._beats = CollectorBeats(collecting.objects, self._beat, taken, beat_seconds=collecting.beat_seconds)

    def start(self) -> None:
        """Begin, in threads."""
        self._drain.start()
        self._beats.start()

    def stop(self, *, within_seconds: float) -> bool:
        """Deliver for so long what is there, then say that this ends; whether nothing is left."""
        whole = self._drain.stop(within_seconds=within_seconds)
        self._ended = True
        self._beats.stop(timeout_seconds=10)
        return whole

    @property
    def is_empty(self) -> bool:
        """Whether everything in it that anybody declares is where it belongs."""
        return self._drain.delivered_up_to() >= self._next_seq() - 1

    def _beat(self) -> CollectorBeat:
        oldest_ms = self._drain.oldest_waiting_ms(self._next_seq())
        sources = {
            name: SourceBeat(
                delivered=0 if name == VAULT else state.events,
                objects=state.objects,
                set_aside=state.set_aside,
                trouble=state.trouble,
                trouble_since=_iso(state.trouble_since) if state.trouble else None,
            )
            for name, state in self._drain.states().items()
        }
        damaged = sorted(path.name for path in self._folder.path.glob(f"*{DAMAGED_SUFFIX}"))
        return CollectorBeat(
            collector=self._collecting.spec.collector,
            id=self._folder.collector_name,
            state="ended" if self._ended else "running",
            written_at=iso_now(),
            started_at=self._started_at,
            next_seq=self._next_seq(),
            spool_bytes=self._folder.size_bytes(),
            spool_max_bytes=self._collecting.spec.spool.max_bytes,
            oldest_at=None if oldest_ms is None else _iso(oldest_ms / 1000),
            damaged=tuple(damaged),
            sources=sources,
            host=socket.gethostname(),
            pid=os.getpid(),
        )


class Leftovers(BackgroundThread):
    """Looks for folders beside its own that nobody holds, and empties them. Where it is stopped, what is left in one
    waits for whoever finds it next."""

    def __init__(self, collecting: Collecting, *, own: Path, look_seconds: float = _LOOK_SECONDS) -> None:
        super().__init__(name="leftovers")
        self._collecting = collecting
        self._own = own
        self._look_seconds = look_seconds
        self._emptied: dict[Path, list[tuple[str, int]]] = {}

    def _run(self) -> None:
        while not self._stopping.is_set():
            for path in spool_folders(self._collecting.root):
                if path != self._own and not self._stopping.is_set():
                    self._empty(path)
            self._stopping.wait(self._look_seconds)

    def _empty(self, path: Path) -> None:
        """Drain one folder to its end, unless somebody holds it or nothing is in it."""
        try:
            folder = SpoolFolder.take(path)
        except ConcurrencyError:
            return
        except Exception:
            log.exception("%s is left as it is", path)
            return
        try:
            next_seq = recover(folder).next_seq
            # Sources that have nothing in it are on record with less: only a look tells that it is empty.
            if self._emptied.get(path) == _content(folder):
                return
            drain = Drain(folder, self._collecting.ways, vault=self._collecting.vault_of(folder))
            part = DrainedFolder(self._collecting, folder, drain, next_seq=lambda: next_seq)
            log.warning("%s is held by nobody: what is in it is delivered from here", path)
            part.start()
            while not part.is_empty and not self._stopping.wait(1.0):
                pass
            part.stop(within_seconds=0)
            if part.is_empty:
                self._emptied[path] = _content(folder)
        except Exception:
            log.exception("%s is left as it is", path)
        finally:
            folder.close()


def _content(folder: SpoolFolder) -> list[tuple[str, int]]:
    """The segments of a folder, by name and size."""
    return [(path.name, size_of(path)) for path in folder.segments()]


def _iso(epoch_seconds: float) -> str:
    return datetime.fromtimestamp(epoch_seconds, UTC).isoformat(timespec="seconds")
