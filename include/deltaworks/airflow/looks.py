"""Looks in Airflow's triggerer whether the task of a scheduled run has work, so that a run without work starts no
process.

Airflow's scheduler defers such a task before it has a process. The triggerer, which runs all the time, skips the task
if the form selects other operations or if nothing is to be done. All other runs continue in the task's process: those
with work, those that do not look, and those whose look failed, so that the process reports the error.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.triggers.base import BaseTrigger, StartTriggerArgs, TaskSkippedEvent, TriggerEvent
from asgiref.sync import sync_to_async

from deltaworks.airflow.child_process import parse_results
from deltaworks.operations.base import ENGINE_KEY, RESULTS_KEY, Look

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

log = logging.getLogger(__name__)
#: Looks that run at a time. Thousands of pipelines may have the same schedule.
_THREADS: Final = 4
#: A task whose look has not ended in this time fails and is retried, for example because no triggerer runs.
_TIMEOUT: Final = timedelta(minutes=30)
#: The keys of the event for a task that continues: the work that the look found, and why it did not look or failed.
WORK_KEY, REASON_KEY = "work", "reason"
_SLOTS = asyncio.Semaphore(_THREADS)


def start_arguments(
    look: str, *, operation: str, subject: str, values: Mapping[str, Any], selected_if: str, look_if: str
) -> StartTriggerArgs:
    """Returns how a task starts in the triggerer. Texts may be templates of fields that the operator renders too.

    Args:
        look: the function that looks, as `module:function`. It gets the context and the options of the operation;
            without an operation the catalog.
        selected_if: renders to `False` in runs that skip the task.
        look_if: renders to `True` in runs that look for work first. Their options are `values` and defaults.
    """
    return StartTriggerArgs(
        trigger_cls=f"{__name__}.{LookTrigger.__name__}",
        trigger_kwargs={
            "look": look,
            "operation": operation,
            "subject": subject,
            "values": dict(values),
            "selected_if": selected_if,
            "look_if": look_if,
        },
        next_method="execute_after_look",
        timeout=_TIMEOUT,
    )


class LookTrigger(BaseTrigger):
    """Decides whether a task needs a process. See `start_arguments` for the arguments."""

    def __init__(
        self, *, look: str, operation: str, subject: str, values: Mapping[str, Any], selected_if: str, look_if: str
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.look = look
        self.operation = operation
        self.subject = subject
        # The names of the operator's templates, which Airflow renders here too.
        self.values = dict(values)
        self.selected_if = selected_if
        self.look_if = look_if

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns the class and the arguments from which Airflow recreates the trigger."""
        names = ("look", "operation", "subject", "values", "selected_if", "look_if")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields one event: the task is skipped, or it continues in its process."""
        if self.selected_if.strip() == "False":
            log.info("The form of this run selects other operations.")
            yield TaskSkippedEvent()
        elif self.look_if.strip() != "True":
            yield _continue(None, "")
        else:
            async with _SLOTS:
                yield await sync_to_async(self.outcome, thread_sensitive=False)()

    def outcome(self) -> TriggerEvent:
        """Looks for work, and records a run without work as a success of its task. Raises nothing."""
        from deltaworks.airflow.aws_connections import set_environment_keys
        from deltaworks.specs.project import load_catalog

        try:
            catalog = load_catalog(skip_invalid=True)
            set_environment_keys(catalog.environment)
            look = look_for_work(catalog, self.look, operation=self.operation, subject=self.subject, values=self.values)
            if look.work:
                return _continue(look.work, look.reason)
            self._record(catalog)
        except Exception as error:
            log.warning("The look for work failed, so the task continues in its process: %s", error, exc_info=True)
            return _continue(None, "the look for work failed")
        log.info("Nothing is done: %s.", look.reason)
        return TaskSkippedEvent(xcoms=_xcoms(look))

    def _record(self, catalog: Catalog) -> None:
        from deltaworks.airflow.job_alerts import record_idle_run
        from deltaworks.control.objects import open_objects

        run, task = self.task_instance, self.task
        if run is not None:
            record_idle_run(
                open_objects(catalog.environment.lake),
                dag_id=run.dag_id,
                task_id=run.task_id,
                run_id=run.run_id,
                is_last_task=task is not None and not task.downstream_task_ids,
            )


def look_for_work(catalog: Catalog, look: str, *, operation: str, subject: str, values: Mapping[str, Any]) -> Look:
    """Returns whether a run has work; see `start_arguments`.

    Raises:
        DeltaworksError: that of the look.
    """
    from deltaworks.operations.base import OperationContext, imported_look
    from deltaworks.operations.options import read_options
    from deltaworks.operations.registry import get_operation

    function = imported_look(look)
    if not operation:
        return function(catalog)
    declared = get_operation(operation)
    context = OperationContext(operation=declared, catalog=catalog, subject=subject)
    return function(context, read_options(declared.options_model(), dict(values)))


def _continue(work: int | None, reason: str) -> TriggerEvent:
    return TriggerEvent({WORK_KEY: work, REASON_KEY: reason})  # type: ignore[no-untyped-call]


def _xcoms(look: Look) -> dict[str, Any]:
    from deltaworks.control.listing import json_value, plain_record

    records = json.dumps([plain_record(result) for result in look.results], default=json_value)
    return {
        ENGINE_KEY: f"the triggerer, without a process ({look.reason})",
        RESULTS_KEY: parse_results(records),
    }
