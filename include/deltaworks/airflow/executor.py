"""The executor of a scheduler: Airflow's own for one machine, without its wait for tasks that never end.

A scheduler that fails, as when its database is away, or is asked to end, waits for all that its executor runs, and
streams run for hours: nothing would be scheduled meanwhile, and whatever restarts containers or processes restarts none
that has not ended.
"""

from __future__ import annotations

import os
import time
from typing import Final

from airflow.executors.local_executor import LocalExecutor as AirflowsExecutor

#: How long tasks may take to end, where they were asked to as well: of a container that is stopped, every process is.
GRACE_VARIABLE: Final = "DELTAWORKS_EXECUTOR_GRACE_SECONDS"
_GRACE_SECONDS = 90.0


class LocalExecutor(AirflowsExecutor):
    """Ends with its scheduler, and after some grace its tasks with it; the next scheduler restarts them.

    By any other name Airflow would warn that its login is not for executors on several machines.
    """

    def end(self) -> None:
        """End the workers: those without a task at once, the others with their task or when the grace is over."""
        until = time.monotonic() + float(os.environ.get(GRACE_VARIABLE, _GRACE_SECONDS))
        for _ in self.workers:
            self.activity_queue.put(None)
        for worker in self.workers.values():
            worker.join(max(0.0, until - time.monotonic()))
            if worker.is_alive():
                worker.kill()
        super().end()
