"""The process that judges the rules of all pipelines: one, by lease, without a JVM, until its time is over.

It looks every few seconds whether minutes have become whole. Declarations are read again where a file has changed. What
does not answer for a while is waited for: minutes that pass meanwhile are judged later. A look that hangs shows: the
heartbeat stands still with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deltaworks.control import rule_paths
from deltaworks.control.clock import utc_now
from deltaworks.control.leased_process import LeasedProcess
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import DeltaworksError
from deltaworks.rules.inputs import OpenTables
from deltaworks.rules.pipeline_judge import PipelineJudge
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake

_LOGGER = logging.getLogger(__name__)
LEASE_SECONDS = 30.0
LOOK_SECONDS = 10.0
MAX_RUN_SECONDS = 14_400.0
#: Longer than any of its turns may take: a baseline's query is ended after 300 s, a rule's after 30.
STALL_SECONDS = 420.0
#: What does not answer for longer ends the process, for whoever started it to see.
_PATIENCE_SECONDS = 300.0


@dataclass(slots=True)
class JudgingCounts:
    """What a run did: looks that ended well, minutes that were judged."""

    looks: int = 0
    judged: int = 0


class JudgingProcess:
    """One run. `run` returns when its time is over or a stop is asked for, and raises on failure.

    Args:
        on_turn: called every few seconds, so that one that hangs is seen.
    """

    def __init__(self, catalog: Catalog, *, on_turn: Callable[[], None] = lambda: None) -> None:
        self._catalog, self._on_turn = catalog, on_turn
        self._objects = open_objects(catalog.environment.lake)
        self._tenure = LeasedProcess(
            self._objects,
            rule_paths.rules_control(),
            name=rule_paths.RULES_DAG,
            ttl_seconds=LEASE_SECONDS,
            max_run_seconds=MAX_RUN_SECONDS,
            trigger_seconds=LOOK_SECONDS,
            stall_seconds=STALL_SECONDS,
        )
        self._judges: dict[str, PipelineJudge] = {}
        self._counts = JudgingCounts()

    def stop(self, *, at_once: bool = False) -> None:
        """End after the rule in hand. Callable from a signal handler."""
        self._tenure.stop()

    def run(self) -> JudgingCounts:
        """Judge until the end.

        Raises:
            ConcurrencyError: LEASE_HELD, another process judges.
            FencedError: LEASE_LOST, a successor has taken over. What it wrote stands: a state is replaced only as it
                was read.
            TransientError: the lake has not answered for minutes.
        """
        with self._tenure.hold_lease(on_turn=self._on_turn):
            self._look_until_end(self._catalog)
        return self._counts

    def _look_until_end(self, catalog: Catalog) -> None:
        failing_since: float | None = None
        tables = OpenTables(Lake(catalog.environment.lake))
        stamp = ""
        while not self._tenure.should_stop:
            try:
                changed = declared_stamp(catalog.root)
                if changed != stamp:
                    catalog, stamp = load_catalog(skip_invalid=True), changed
                    self._declare(catalog, self._objects, tables)
                self._look(tables)
                failing_since = None
                self._tenure.heartbeat.update(state="idle")
            except DeltaworksError as error:
                failing_since = failing_since or time.monotonic()
                if not error.retryable or time.monotonic() - failing_since > _PATIENCE_SECONDS:
                    raise
                _LOGGER.warning("It is tried again: %s", error)
            self._tenure.pause(LOOK_SECONDS)

    def _declare(self, catalog: Catalog, objects: ObjectStore, tables: OpenTables) -> None:
        """Take over what is declared now. A pipeline that is wrong is left as it was judged last."""
        for name in [name for name in self._judges if (("pipeline", name) not in catalog.broken)]:
            self._judges.pop(name).close()
        for name, spec in catalog.pipelines.items():
            self._tenure.record_progress()
            judge = PipelineJudge(catalog, name, objects, tables)
            judge.end_what_is_gone()
            if spec.alerts:
                self._judges[name] = judge
            else:
                judge.close()

    def _look(self, tables: OpenTables) -> None:
        tables.look_again()
        for name, judge in self._judges.items():
            if self._has_to_end():
                return
            try:
                self._counts.judged += judge.look(utc_now(), has_to_end=self._has_to_end)
            except DeltaworksError:
                raise
            # A table that is torn, a bug in one pipeline: the others are judged all the same.
            except Exception:
                _LOGGER.exception("The rules of %s could not be judged", name)
        self._counts.looks += 1

    def _has_to_end(self) -> bool:
        """Asked before every rule: with hundreds of them a look takes long, and gets on all the same."""
        self._tenure.record_progress()
        return self._tenure.stopping.is_set()


def declared_stamp(root: Path) -> str:
    """What changes with any file of what is declared: their number, and the newest of their times."""
    times = [file.stat().st_mtime_ns for file in (root / "include").glob("*/**/*") if file.suffix in (".yaml", ".sql")]
    return f"{len(times)} {max(times, default=0)}"
