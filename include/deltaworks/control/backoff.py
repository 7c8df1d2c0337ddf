"""Restart backoff of long-running jobs, shared by all launchers of a stream.

There is one schedule (`wait_seconds`) and one deadline per stream. A failed run records its time and the seconds to
wait; the next run waits until that deadline before it opens anything. Airflow's retry policy uses the same schedule, so
that a waiting task occupies no slot. Both waits count from the failure, so they overlap instead of adding up. The
record is an object in the control folder and therefore survives process and DAG run ends.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import StateRecord
from deltaworks.errors import FencedError

log = logging.getLogger(__name__)
FIRST_WAIT_SECONDS = 5.0
MAX_WAIT_SECONDS = 300.0
#: After a run of this length the count of consecutive failures starts again at 1.
STABLE_RUN_SECONDS = 600.0
#: Conditions caused by the environment (unreachable server, overloaded machine, concurrent writer), not by the stream.
OUTAGE_CONDITIONS = frozenset(
    {
        "STORAGE_UNREACHABLE",
        "STORAGE_REFUSED",
        "LEASE_EXPIRED",
        "KINESIS_UNREACHABLE",
        "DELTA_CONFLICT",
        "PYTHON_WORKER_TIMEOUT",
    }
)
#: Interval at which a waiting run checks whether its wait was cancelled.
POLL_SECONDS = 5.0


def wait_seconds(failures: int, *, retryable: bool = True) -> float:
    """Returns the seconds to wait after the given number of consecutive early failures.

    Args:
        retryable: whether a retry alone can succeed. If not, the wait is the maximum from the first failure on; the
            stream recovers by itself once the cause is fixed.
    """
    if not retryable:
        return MAX_WAIT_SECONDS
    # The exponent is bounded: after days of failures 2**n would not fit into a float.
    return min(FIRST_WAIT_SECONDS * 2.0 ** min(max(failures, 1) - 1, 16), MAX_WAIT_SECONDS)


class FailureRecord(StateRecord):
    """Consecutive early failures: their number, the time of the last one (ISO 8601, UTC) and the wait after it.

    Outages of servers are excluded from `non_outage_failures`. If the stream's group no longer restarts the stream,
    `parked_condition` is the condition of its last failure; otherwise it is empty.
    """

    failures: int = 0
    failed_at: str | None = None
    wait_seconds: float = 0.0
    non_outage_failures: int = 0
    parked_condition: str = ""


class RestartBackoff:
    """The restart backoff of one stream.

    Only one process may use it at a time, except for `reset`, which any process may call.

    Raises:
        TransientError: the control storage does not answer (every method).
    """

    def __init__(
        self,
        objects: ObjectStore,
        key: str,
        *,
        clock: Callable[[], datetime] = utc_now,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._objects = objects
        self._key = key
        self._clock = clock
        self._sleep = sleep
        self._started = clock()

    def read(self) -> FailureRecord:
        """Reads the stored record; returns an empty record if there is none.

        Raises:
            ValueError: the object is damaged.
        """
        return FailureRecord.read(self._objects, self._key) or FailureRecord()

    def remaining_seconds(self) -> float:
        """Returns the remaining seconds of the wait after the last failure."""
        record = self.read()
        failed_at = parse_iso(record.failed_at)
        if failed_at is None:
            return 0.0
        elapsed_seconds = (self._clock() - failed_at).total_seconds()
        # A failure time in the future comes from another clock: the elapsed wait is unknown.
        return max(0.0, record.wait_seconds - elapsed_seconds) if elapsed_seconds >= 0 else 0.0

    def wait(self) -> float:
        """Waits until the deadline or until another process calls `reset`, then records the start of the run.

        Returns:
            The seconds waited.
        """
        waited_seconds = 0.0
        while (remaining := self.remaining_seconds()) > 0:
            step_seconds = min(remaining, POLL_SECONDS)
            self._sleep(step_seconds)
            waited_seconds += step_seconds
        self._started = self._clock()
        return waited_seconds

    def start_run(self) -> None:
        """Records the start of the run. A failure soon after it counts as an early failure."""
        self._started = self._clock()

    def park(self, condition: str) -> None:
        """Records that the stream must not be restarted until `reset`. Idempotent."""
        self._objects.put(self._key, self.read().replace(parked_condition=condition).encode())

    def record_failure(self, *, retryable: bool = True, is_outage: bool = False) -> float:
        """Records a failure of the run. Does not wait.

        Args:
            is_outage: a server was unreachable; the failure is not counted against the stream.

        Returns:
            The seconds until the next attempt.
        """
        now = self._clock()
        early = (now - self._started).total_seconds() < STABLE_RUN_SECONDS
        previous = self.read()
        failures = previous.failures + 1 if early else 1
        non_outage_failures = (previous.non_outage_failures if early else 0) + (0 if is_outage else 1)
        # Random extra time, so that streams that failed together do not restart together.
        seconds = min(wait_seconds(failures, retryable=retryable) * random.uniform(1.0, 1.2), MAX_WAIT_SECONDS)
        record = FailureRecord(
            failures=failures,
            failed_at=now.isoformat(),
            wait_seconds=round(seconds, 1),
            non_outage_failures=non_outage_failures,
        )
        self._objects.put(self._key, record.encode())
        return record.wait_seconds

    def reset(self) -> None:
        """Deletes the record, after a successful run or when a person requests an immediate retry. Idempotent."""
        if self._objects.get(self._key) is not None:
            self._objects.delete(self._key)

    @contextmanager
    def run_with_backoff(self) -> Iterator[None]:
        """Waits until the deadline, runs the block, and records its outcome.

        A fenced run counts neither as a failure nor as a success: its successor owns the record.
        """
        if (remaining := self.remaining_seconds()) > 0:
            failures = self.read().failures
            log.warning("waiting %.0f s before this run, after %d failures in a row", remaining, failures)
            self.wait()
        try:
            yield
        except FencedError:
            raise
        except Exception as error:
            converted = as_deltaworks_error(error)
            self.record_failure(retryable=converted.retryable, is_outage=converted.condition in OUTAGE_CONDITIONS)
            raise
        self.reset()
