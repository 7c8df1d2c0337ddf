"""Runs a collector process: request handling and spool, the drain of the spool, and its records in the lake.

The redaction keys and suppression lists of its sources' namespaces are opened before it accepts events. If no process
holds a spool folder, the process or pod that created it has ended. Any other process drains the folder.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from collector.drain import VAULT_SOURCE, Destination, Drain, spool_folders
from collector.process import Background, CollectorProcess
from collector.recovery import RecoveredSpool, recover
from collector.sinks.vault import VaultSink
from collector.spool import Spool
from collector.spool_folder import DAMAGED_SUFFIX, SpoolFolder, file_size
from deltaworks.collector_host.redaction import CollectorRedaction, SuppressionReload
from deltaworks.control.background import BackgroundThread
from deltaworks.control.clock import iso_now
from deltaworks.control.health.collectors import CollectorHeartbeatWriter, EventCounts
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.collector import CollectorHeartbeat, SourceStatus
from deltaworks.errors import ConcurrencyError, DeltaworksError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.collector import CollectorSpec
from deltaworks.specs.project import load_catalog
from deltaworks.specs.project_folder import DeclarationState, declaration_state

log = logging.getLogger(__name__)
_SCAN_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorRun:
    """Settings of a collector process, and the process itself (`run`)."""

    spec: CollectorSpec
    destinations: dict[str, Destination]
    objects: ObjectStore
    root: Path
    beat_seconds: float = 10.0
    redaction: CollectorRedaction = field(default_factory=CollectorRedaction)

    def vault_sink(self, folder: SpoolFolder) -> VaultSink | None:
        """Returns the sink for the encrypted values in a spool folder; None if the collector encrypts nothing."""
        vault = self.redaction.vault
        return None if vault is None else VaultSink(vault, folder.collector_hex)

    def run(self) -> int:
        """Accepts events until a signal and returns the exit code.

        The process uses the first spool folder that no other process holds.

        Raises:
            DeltaworksError: SPOOL_FOLDER_DAMAGED, SPOOL_SEGMENT_UNKNOWN, SPOOL_PROGRESS_UNREADABLE.
        """
        number = 0
        while True:
            process = _FolderProcess(self, self.root / f"w{number}")
            try:
                return process.run()
            except ConcurrencyError as error:
                if error.condition != "SPOOL_LOCKED":
                    raise
                number += 1


class _FolderProcess(CollectorProcess):
    """The process that holds a spool folder, with its background threads."""

    def __init__(self, run: CollectorRun, folder: Path) -> None:
        super().__init__(run.spec, folder, open_background=self._start_background, redactions=run.redaction.by_source)
        self._run_settings = run

    def _start_background(
        self, _spec: CollectorSpec, folder: SpoolFolder, spool: Spool, _recovered: RecoveredSpool
    ) -> Sequence[Background]:
        vault = self._run_settings.vault_sink(folder)
        drain = Drain(
            folder,
            self._run_settings.destinations,
            vault=vault,
            durable_position=spool.durable_position,
            on_deleted=spool.record_deleted,
        )
        self._metrics.sinks = drain.sinks
        drained_folder = DrainedFolder(
            self._run_settings, folder, drain, next_seq=spool.next_seq, accepted_counts=self._accepted_counts
        )
        background: list[Background] = [OrphanedFolders(self._run_settings, own_folder=folder.path), drained_folder]
        if self._run_settings.redaction.by_source:
            background.append(SuppressionReload(self._run_settings.redaction, self._run_settings.objects))
        return background

    def _accepted_counts(self) -> EventCounts:
        counts: dict[str, dict[str, int]] = {}
        for (source, verdict), count in list(self._app.metrics.events.items()):
            counts.setdefault(source, {})[verdict] = count
        return counts


class DrainedFolder:
    """Delivers the events in a spool folder and writes the folder's heartbeat."""

    def __init__(
        self,
        run: CollectorRun,
        folder: SpoolFolder,
        drain: Drain,
        *,
        next_seq: Callable[[], int],
        accepted_counts: Callable[[], EventCounts] = lambda: {},
    ) -> None:
        self._run_settings = run
        self._folder = folder
        self._drain = drain
        self._next_seq = next_seq
        self._started_at = iso_now()
        self._has_ended = False
        self._heartbeats = CollectorHeartbeatWriter(
            run.objects, self._heartbeat, accepted_counts, interval_seconds=run.beat_seconds
        )

    def start(self) -> None:
        """Starts the threads that deliver events and write the heartbeat."""
        self._drain.start()
        self._heartbeats.start()

    def stop(self, *, timeout_seconds: float) -> bool:
        """Delivers waiting events within the time limit and writes the last heartbeat.

        Returns:
            Whether all events are delivered.
        """
        is_drained = self._drain.stop(timeout_seconds=timeout_seconds)
        self._has_ended = True
        self._heartbeats.stop(timeout_seconds=10)
        return is_drained

    @property
    def is_empty(self) -> bool:
        """Whether all events in the folder that belong to declared sources are delivered."""
        return self._drain.delivered_up_to() >= self._next_seq() - 1

    def _heartbeat(self) -> CollectorHeartbeat:
        oldest_ms = self._drain.oldest_waiting_ms(self._next_seq())
        sources = {
            name: SourceStatus(
                delivered=0 if name == VAULT_SOURCE else state.events,
                objects=state.objects,
                dead_letters=state.dead_letters,
                problem=state.problem,
                problem_since=_to_iso(state.problem_since) if state.problem else None,
            )
            for name, state in self._drain.states().items()
        }
        damaged = sorted(path.name for path in self._folder.path.glob(f"*{DAMAGED_SUFFIX}"))
        return CollectorHeartbeat(
            collector=self._run_settings.spec.collector,
            id=self._folder.collector_hex,
            state="ended" if self._has_ended else "running",
            written_at=iso_now(),
            started_at=self._started_at,
            next_seq=self._next_seq(),
            spool_bytes=self._folder.size_bytes(),
            spool_max_bytes=self._run_settings.spec.spool.max_bytes,
            oldest_at=None if oldest_ms is None else _to_iso(oldest_ms / 1000),
            damaged=tuple(damaged),
            sources=sources,
            host=socket.gethostname(),
            pid=os.getpid(),
        )


class OrphanedFolders(BackgroundThread):
    """Finds spool folders that no process holds, and delivers their events.

    If this process is stopped, another process continues.
    """

    def __init__(self, run: CollectorRun, *, own_folder: Path, scan_seconds: float = _SCAN_SECONDS) -> None:
        super().__init__(name="leftovers")
        self._run_settings = run
        self._own_folder = own_folder
        self._scan_seconds = scan_seconds
        self._drained_contents: dict[Path, list[tuple[str, int]]] = {}

    def _run(self) -> None:
        while not self._stopping.is_set():
            for path in spool_folders(self._run_settings.root):
                if path != self._own_folder and not self._stopping.is_set():
                    self._drain_folder(path)
            self._stopping.wait(self._scan_seconds)

    def _drain_folder(self, path: Path) -> None:
        """Delivers the events of a folder, unless a process holds the folder or it is empty."""
        try:
            folder = SpoolFolder.acquire(path)
        except ConcurrencyError:
            return
        except Exception:
            log.exception("%s is skipped", path)
            return
        try:
            next_seq = recover(folder).next_seq
            # The recorded deliveries of a source without events here end earlier. So only a scan shows that the folder
            # is empty.
            if self._drained_contents.get(path) == _segment_sizes(folder):
                return
            drain = Drain(folder, self._run_settings.destinations, vault=self._run_settings.vault_sink(folder))
            drained_folder = DrainedFolder(self._run_settings, folder, drain, next_seq=lambda: next_seq)
            log.warning("%s is held by no process; its events are delivered by this one", path)
            drained_folder.start()
            while not drained_folder.is_empty and not self._stopping.wait(1.0):
                pass
            drained_folder.stop(timeout_seconds=0)
            if drained_folder.is_empty:
                self._drained_contents[path] = _segment_sizes(folder)
        except Exception:
            log.exception("%s is skipped", path)
        finally:
            folder.close()


def _segment_sizes(folder: SpoolFolder) -> list[tuple[str, int]]:
    """Returns the size of each segment file of a spool folder, by name."""
    return [(path.name, file_size(path)) for path in folder.segments()]


def _to_iso(epoch_seconds: float) -> str:
    return datetime.fromtimestamp(epoch_seconds, UTC).isoformat(timespec="seconds")


class DeclarationWatch(BackgroundThread):
    """Ends the process as a signal does once the declaration of its collector has changed and is valid.

    The launcher then starts it again with the changed declaration: new sources and keys need no other restart. An
    invalid declaration changes nothing; the next valid one does.
    """

    def __init__(self, catalog: Catalog, collector: str, *, poll_seconds: float = 5.0) -> None:
        super().__init__(name="declaration")
        self._root, self._collector, self._poll_seconds = catalog.root, collector, poll_seconds
        self._declared = _declaration(catalog, collector)
        # Unknown: files may have changed since the catalog was loaded.
        self._files: DeclarationState | None = None
        self.has_changed = False

    def _run(self) -> None:
        while not self._stopping.wait(self._poll_seconds):
            files = declaration_state(self._root)
            if files == self._files:
                continue
            self._files = files
            try:
                changed = _declaration(load_catalog(root=self._root, skip_invalid=True), self._collector)
            except DeltaworksError as error:
                log.warning("The changed declaration of %s is not used: %s", self._collector, error)
                continue
            if changed != self._declared:
                self.has_changed = True
                os.kill(os.getpid(), signal.SIGTERM)
                return


def _declaration(catalog: Catalog, collector: str) -> tuple[CollectorSpec, dict[str, str]]:
    """Returns what a process is started with: the collector, and the fingerprints of the pipelines of its sources.

    Raises:
        ConfigError: the collector is unknown or invalid.
    """
    spec = catalog.collector(collector)
    names = {source.pipeline for source in spec.sources.values()} & catalog.pipelines.keys()
    return spec, {name: catalog.pipelines[name].fingerprint() for name in sorted(names)}
