"""The scheduler's executor: Airflow's LocalExecutor, without its wait for continuous tasks.

When a scheduler fails (for example because its database is unreachable) or is stopped, LocalExecutor waits for all
running tasks, and streams run for hours. Until then nothing would be scheduled, and a process supervisor would not
restart the scheduler because it has not ended.
"""

from __future__ import annotations

import os
import time
from typing import Final

from airflow.executors.local_executor import LocalExecutor as AirflowsExecutor

#: Seconds that tasks get to end after a stop. In a stopped container every process gets the signal.
GRACE_VARIABLE: Final = "DELTAWORKS_EXECUTOR_GRACE_SECONDS"
_GRACE_SECONDS = 90.0


class LocalExecutor(AirflowsExecutor):
    """Airflow's LocalExecutor, but it ends with its scheduler: it ends running tasks after a grace period.

    The next scheduler restarts those tasks. The class has Airflow's class name, since Airflow warns for any other one
    that its simple login is not meant for executors on several machines.
    """

    def end(self) -> None:
        """Ends idle workers immediately, and the others with their task or when the grace period is over."""
        until = time.monotonic() + float(os.environ.get(GRACE_VARIABLE, _GRACE_SECONDS))
        for _ in self.workers:
            self.activity_queue.put(None)
        for worker in self.workers.values():
            worker.join(max(0.0, until - time.monotonic()))
            if worker.is_alive():
                worker.kill()
        super().end()
