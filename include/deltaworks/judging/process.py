"""The process that judges the rules of all pipelines: one, by lease, without a JVM, until its time is over.

It looks every few seconds whether minutes have become whole. Declarations are read again where a file has changed. What
does not answer for a while is waited for: minutes that pass meanwhile are judged later.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from deltaworks.control import paths, rule_paths
from deltaworks.control.clock import utc_now
from deltaworks.control.health.heartbeat import HeartbeatWriter
from deltaworks.control.health.stop import StopFlag
from deltaworks.control.locks.lease import Lease, watch
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import DeltaworksError, FencedError, TransientError
from deltaworks.judging.inputs import OpenTables
from deltaworks.judging.pipeline_judge import PipelineJudge
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake

_LOGGER = logging.getLogger(__name__)
_LEASE_SECONDS = 30.0
_LOOK_SECONDS = 10.0
_STOP_POLL_SECONDS = 2.0
#: What does not answer for longer ends the process, for whoever started it to see.
_PATIENCE_SECONDS = 300.0
MAX_RUN_SECONDS = 14_400.0


class JudgingProcess:
    """One run. `run` returns when its time is over or a stop is asked for, and raises on failure.

    Args:
        read: reads what is declared, tolerantly.
        look_seconds: how far apart two looks lie.
        lease_wait_seconds: how long to wait for another process's lease; by default its time to live and a half.
    """

    def __init__(
        self,
        *,
        read: Callable[[], Catalog] = lambda: load_catalog(tolerant=True),
        max_run_seconds: float = MAX_RUN_SECONDS,
        look_seconds: float = _LOOK_SECONDS,
        lease_wait_seconds: float = _LEASE_SECONDS * 1.5,
        lease_seconds: float = _LEASE_SECONDS,
    ) -> None:
        self._read = read
        self._max_run = max_run_seconds
        self._look_seconds = look_seconds
        self._lease_wait = lease_wait_seconds
        self._lease_seconds = lease_seconds
        self._stop = threading.Event()
        self._lost = False
        self._judges: dict[str, PipelineJudge] = {}
        self.looks = 0
        self.judged = 0

    def stop(self) -> None:
        """End after the rule in hand. Callable from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Judge until the end.

        Raises:
            ConcurrencyError: LEASE_HELD, another process judges.
            FencedError: LEASE_LOST, a successor has taken over. What it wrote stands: a state is replaced only as it
                was read.
            TransientError: the lake has not answered for minutes.
        """
        catalog = self._read()
        objects = open_objects(catalog.environment.lake)
        key = paths.lease(rule_paths.rules_control())
        lease = Lease(objects, key, ttl_seconds=self._lease_seconds, name=rule_paths.PROCESS)
        with lease.held(wait_seconds=self._lease_wait):
            watch(lease, self._on_lease_lost)
            with self._heartbeat(objects, lease) as heartbeat:
                self._look_until_end(catalog, objects, heartbeat)
                if self._lost:
                    raise FencedError(
                        "LEASE_LOST",
                        "Another process judges the rules now.",
                        hint="Nothing to do: what was judged here and there is the same.",
                    )

    def _look_until_end(self, catalog: Catalog, objects: ObjectStore, heartbeat: HeartbeatWriter) -> None:
        ends_at = time.monotonic() + self._max_run
        failing_since: float | None = None
        flag = StopFlag(objects, paths.stop_request(rule_paths.rules_control()))
        tables = OpenTables(Lake(catalog.environment.lake))
        stamp = ""
        while not self._stop.is_set() and time.monotonic() < ends_at:
            try:
                if flag.read() is not None:
                    return
                changed = declared_stamp(catalog.root)
                if changed != stamp:
                    catalog, stamp = self._read(), changed
                    self._declare(catalog, objects, tables)
                self._look(tables)
                failing_since = None
                heartbeat.update(state="idle")
            except DeltaworksError as error:
                failing_since = failing_since or time.monotonic()
                if not error.retryable or time.monotonic() - failing_since > _PATIENCE_SECONDS:
                    raise
                _LOGGER.warning("It is tried again: %s", error)
            self._wait(flag)

    def _wait(self, flag: StopFlag) -> None:
        ends_at = time.monotonic() + self._look_seconds
        while not self._stop.is_set() and (left := ends_at - time.monotonic()) > 0:
            self._stop.wait(min(left, _STOP_POLL_SECONDS))
            with contextlib.suppress(TransientError):
                if flag.read() is not None:
                    self._stop.set()

    def _declare(self, catalog: Catalog, objects: ObjectStore, tables: OpenTables) -> None:
        """Take over what is declared now. A pipeline that is wrong is left as it was judged last."""
        for name in [name for name in self._judges if (("pipeline", name) not in catalog.broken)]:
            self._judges.pop(name).close()
        for name, spec in catalog.pipelines.items():
            judge = PipelineJudge(catalog, name, objects, tables)
            judge.end_what_is_gone()
            if spec.alerts:
                self._judges[name] = judge
            else:
                judge.close()

    def _look(self, tables: OpenTables) -> None:
        tables.look_again()
        for name, judge in self._judges.items():
            if self._stop.is_set():
                return
            try:
                self.judged += judge.look(utc_now(), has_to_end=self._stop.is_set)
            except DeltaworksError:
                raise
            # A table that is torn, a bug in one pipeline: the others are judged all the same.
            except Exception:
                _LOGGER.exception("The rules of %s could not be judged", name)
        self.looks += 1

    def _on_lease_lost(self) -> None:
        self._lost = True
        self._stop.set()

    @contextlib.contextmanager
    def _heartbeat(self, objects: ObjectStore, lease: Lease) -> Iterator[HeartbeatWriter]:
        key = paths.heartbeat(rule_paths.rules_control())
        writer = HeartbeatWriter(objects, key, pipeline=rule_paths.PROCESS, trigger_seconds=self._look_seconds)
        writer.update(owner=lease.owner, epoch=lease.epoch)
        writer.start()
        try:
            yield writer
        except Exception as error:
            unknown = {"condition": type(error).__name__, "message": str(error)}
            # Once the lease is lost the object is the successor's.
            if not lease.lost:
                record = error.as_record() if isinstance(error, DeltaworksError) else unknown
                writer.close(state="failed", error=record)
            raise
        writer.close(state="ended")


def declared_stamp(root: Path) -> str:
    """What changes with any file of what is declared: their number, and the newest of their times."""
    times = [file.stat().st_mtime_ns for file in (root / "include").glob("*/**/*") if file.suffix in (".yaml", ".sql")]
    return f"{len(times)} {max(times, default=0)}"
