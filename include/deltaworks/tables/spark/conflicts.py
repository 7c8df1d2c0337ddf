"""Tries again what met another writer's commit: each attempt starts from the table as it is then."""

from __future__ import annotations

import logging

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from deltaworks.control.job import as_deltaworks_error

log = logging.getLogger(__name__)
MAX_ATTEMPTS = 6
#: The condition under which a conflict with another writer is told.
CONFLICT = "DELTA_CONFLICT"


def conflicts_retried(table: str) -> Retrying:
    """Attempts that are made anew after a conflict with another writer, a few times and with growing pauses."""

    def tell(state: RetryCallState) -> None:
        problem = state.outcome.exception() if state.outcome else None
        log.warning("table=%s attempt=%d met another writer: %s", table, state.attempt_number, problem)

    return Retrying(
        retry=retry_if_exception(_is_conflict),
        stop=stop_after_attempt(MAX_ATTEMPTS),
        wait=wait_exponential_jitter(initial=0.2, max=5.0),
        before_sleep=tell,
        reraise=True,
    )


def _is_conflict(error: BaseException) -> bool:
    return as_deltaworks_error(error).condition == CONFLICT
