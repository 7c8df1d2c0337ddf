"""The process that evaluates the rules of all pipelines. A lease allows only one at a time; needs no JVM.

Checks every few seconds which minutes are complete, and reloads declarations when a file changes. Transient failures
are retried; missed minutes are evaluated later. If a round hangs, the heartbeat stops too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.leased_process import LeasedProcess
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import DeltaworksError
from deltaworks.rules.inputs import RuleTables
from deltaworks.rules.pipeline_evaluator import PipelineEvaluator
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.notice_delay import EVALUATION_INTERVAL_SECONDS
from deltaworks.specs.project import load_catalog
from deltaworks.specs.project_folder import DeclarationState, declaration_state
from deltaworks.tables.lake import Lake

_LOGGER = logging.getLogger(__name__)
LEASE_SECONDS = 30.0
MAX_RUN_SECONDS = 14_400.0
#: Stall timeout, longer than any single step: baseline queries are interrupted after 300 s, rule queries after 30 s.
STALL_SECONDS = 420.0
#: If transient failures last longer, the process ends, so that its supervisor notices.
_MAX_FAILING_SECONDS = 300.0


@dataclass(slots=True)
class EvaluationCounts:
    """Counts of a run: completed rounds and evaluated rules."""

    rounds: int = 0
    evaluated: int = 0


class RuleProcess:
    """One run of the rule process. `run` returns at its time limit or when a stop is requested, and raises on failure.

    Args:
        on_tick: called every few seconds, so that a stall is detected.
    """

    def __init__(self, catalog: Catalog, *, on_tick: Callable[[], None] = lambda: None) -> None:
        self._catalog, self._on_tick = catalog, on_tick
        self._objects = open_objects(catalog.environment.lake)
        self._leased_process = LeasedProcess(
            self._objects,
            paths.rules_control(),
            name=paths.RULES_PROCESS,
            ttl_seconds=LEASE_SECONDS,
            max_run_seconds=MAX_RUN_SECONDS,
            trigger_seconds=EVALUATION_INTERVAL_SECONDS,
            stall_seconds=STALL_SECONDS,
        )
        self._evaluators: dict[str, PipelineEvaluator] = {}
        self._counts = EvaluationCounts()

    def stop(self, *, immediately: bool = False) -> None:
        """Requests a stop after the current rule. Callable from a signal handler."""
        self._leased_process.stop()

    def run(self) -> EvaluationCounts:
        """Evaluates rules until the run ends.

        Raises:
            ConcurrencyError: LEASE_HELD, another process is running.
            FencedError: LEASE_LOST, a successor has taken over. Writes are conditional, so none of its writes is
                overwritten.
            TransientError: the lake was unreachable for minutes.
        """
        with self._leased_process.hold_lease(on_tick=self._on_tick):
            self._evaluate_until_end(self._catalog)
        return self._counts

    def _evaluate_until_end(self, catalog: Catalog) -> None:
        failing_since: float | None = None
        tables = RuleTables(Lake(catalog.environment.lake))
        loaded: DeclarationState | None = None
        while not self._leased_process.should_stop:
            try:
                state = declaration_state(catalog.root)
                if state != loaded:
                    catalog, loaded = load_catalog(skip_invalid=True), state
                    self._load_evaluators(catalog, self._objects, tables)
                self._evaluate_all(tables)
                failing_since = None
                self._leased_process.heartbeat.update(state="idle")
            except DeltaworksError as error:
                failing_since = failing_since or time.monotonic()
                if not error.retryable or time.monotonic() - failing_since > _MAX_FAILING_SECONDS:
                    raise
                _LOGGER.warning("Retrying: %s", error)
            self._leased_process.pause(EVALUATION_INTERVAL_SECONDS)

    def _load_evaluators(self, catalog: Catalog, objects: ObjectStore, tables: RuleTables) -> None:
        """Loads the declared rules. A pipeline with an invalid declaration keeps its previous rules."""
        for name in [name for name in self._evaluators if (("pipeline", name) not in catalog.broken)]:
            self._evaluators.pop(name).close()
        for name, spec in catalog.pipelines.items():
            self._leased_process.record_progress()
            evaluator = PipelineEvaluator(catalog, name, objects, tables)
            evaluator.resolve_removed_rules()
            if spec.rules:
                self._evaluators[name] = evaluator
            else:
                evaluator.close()

    def _evaluate_all(self, tables: RuleTables) -> None:
        tables.mark_stale()
        for name, evaluator in self._evaluators.items():
            if self._should_stop():
                return
            try:
                self._counts.evaluated += evaluator.evaluate(utc_now(), should_stop=self._should_stop)
            except DeltaworksError:
                raise
            # A damaged table or a bug in one pipeline must not stop the evaluation of others.
            except Exception:
                _LOGGER.exception("The rules of %s could not be evaluated", name)
        self._counts.rounds += 1

    def _should_stop(self) -> bool:
        """Returns whether a stop is requested, and records progress.

        It is checked before every rule, because a round over hundreds of rules takes long.
        """
        self._leased_process.record_progress()
        return self._leased_process.stopping.is_set()
