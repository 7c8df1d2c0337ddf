"""The back-off of endless jobs: how long after a failure the next try begins, whoever starts it.

There is one schedule (`wait_seconds`) and one deadline per stream. A run that fails records when it failed and how long
to wait; the next run waits for what is left of that before it opens anything. A launcher may wait as well, to give its
slot away meanwhile (Airflow's retry policy does, by the same schedule): both count from the failure, so that their
waits overlap and do not add up. The record is an object beside the lease, so it outlives processes and DAG runs.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import FencedError

log = logging.getLogger(__name__)
FIRST_WAIT_SECONDS = 5.0
MAX_WAIT_SECONDS = 300.0
#: A run that lasted this long worked: its failure counts as the first.
STABLE_RUN_SECONDS = 600.0
#: Errors that say nothing about the stream that met them: a server was away, the machine too busy, or somebody
#: else had what it needs.
OUTAGE_CONDITIONS = frozenset(
    {"STORAGE_UNREACHABLE", "STORAGE_REFUSED", "KINESIS_UNREACHABLE", "DELTA_CONFLICT", "PYTHON_WORKER_TIMEOUT"}
)
#: How often a waiting run looks whether its wait was called off.
POLL_SECONDS = 5.0


def wait_seconds(failures: int, *, retryable: bool = True) -> float:
    """Seconds between the last of that many early failures in a row and the next try.

    Args:
        retryable: whether a retry alone can succeed. Where it cannot, the wait is the longest from the first failure
            on: the stream comes back by itself once its cause was removed.
    """
    if not retryable:
        return MAX_WAIT_SECONDS
    # The exponent is bounded as well: after days of failures 2**n is no float any more.
    return min(FIRST_WAIT_SECONDS * 2.0 ** min(max(failures, 1) - 1, 16), MAX_WAIT_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """Early failures in a row, when the last one was (ISO 8601, UTC), and how long to wait after it.

    `non_outage_failures` are those of them that are the stream's own, and no outage of a server's; `parked` is the condition
    of the last one where a group of streams goes on without this one until somebody starts it. A record of an earlier
    release has only `failures`; nothing is waited for then.
    """

    failures: int = 0
    failed_at: str | None = None
    wait_seconds: float = 0.0
    non_outage_failures: int = 0
    parked_condition: str = ""


class RestartBackoff:
    """The back-off of one stream. One process at a time uses it; `reset` may be called from any other.

    Raises:
        TransientError: the control area does not answer (every method).
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
        """What is on record; no failures where there is nothing."""
        item = self._objects.get(self._key)
        record = json.loads(item.data) if item else {}
        return FailureRecord(**{name: record[name] for name in FailureRecord.__slots__ if name in record})

    def remaining_seconds(self) -> float:
        """What is left of the wait after the last failure."""
        record = self.read()
        failed_at = parse_iso(record.failed_at)
        if failed_at is None:
            return 0.0
        elapsed_seconds = (self._clock() - failed_at).total_seconds()
        # A failure that is yet to come was recorded by another clock: how much of its wait is over is unknown.
        return max(0.0, record.wait_seconds - elapsed_seconds) if elapsed_seconds >= 0 else 0.0

    def wait(self) -> float:
        """Wait for what is left, or until `reset` is called elsewhere. The run counts from here.

        Returns:
            The seconds waited.
        """
        waited_seconds = 0.0
        while (left_seconds := self.remaining_seconds()) > 0:
            step_seconds = min(left_seconds, POLL_SECONDS)
            self._sleep(step_seconds)
            waited_seconds += step_seconds
        self._started = self._clock()
        return waited_seconds

    def start_run(self) -> None:
        """A run begins now: whether its failure is an early one counts from here."""
        self._started = self._clock()

    def park(self, condition: str) -> None:
        """Note that nobody tries again before `reset`. Idempotent."""
        self._objects.put(self._key, json.dumps(asdict(replace(self.read(), parked_condition=condition))).encode())

    def record_failure(self, *, retryable: bool = True, is_outage: bool = False) -> float:
        """The run failed: record it. Does not wait itself.

        Args:
            outage: a server was away, which says nothing about the stream.

        Returns:
            The seconds until the next try.
        """
        now = self._clock()
        early = (now - self._started).total_seconds() < STABLE_RUN_SECONDS
        before = self.read()
        failures = before.failures + 1 if early else 1
        non_outage_failures = (before.non_outage_failures if early else 0) + (0 if is_outage else 1)
        # Streams that failed together, as when their storage was away, do not come back together.
        seconds = min(wait_seconds(failures, retryable=retryable) * random.uniform(1.0, 1.2), MAX_WAIT_SECONDS)
        record = FailureRecord(
            failures=failures,
            failed_at=now.isoformat(),
            wait_seconds=round(seconds, 1),
            non_outage_failures=non_outage_failures,
        )
        self._objects.put(self._key, json.dumps(asdict(record)).encode())
        return record.wait_seconds

    def reset(self) -> None:
        """Forget the failures: a run ended well, or a person wants the next try at once. Idempotent."""
        if self._objects.get(self._key) is not None:
            self._objects.delete(self._key)

    @contextmanager
    def run_with_backoff(self) -> Iterator[None]:
        """One run: wait for what is left, then record how the run ended.

        A run that was fenced counts neither as a failure nor as a success: its successor keeps the record.
        """
        if (left_seconds := self.remaining_seconds()) > 0:
            failures = self.read().failures
            log.warning("waiting %.0f s before this run, after %d failures in a row", left_seconds, failures)
            self.wait()
        try:
            yield
        except FencedError:
            raise
        except Exception as error:
            own = as_deltaworks_error(error)
            self.record_failure(retryable=own.retryable, is_outage=own.condition in OUTAGE_CONDITIONS)
            raise
        self.reset()
