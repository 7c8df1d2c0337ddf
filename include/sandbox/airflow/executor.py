"""The executor of the embedded stack: Airflow's own, without its wait for tasks that never end.

A scheduler that fails, or is asked to end, waits for all that its executor runs, and streams run for hours: nothing
would be scheduled meanwhile, and no supervisor starts again what has not ended.
"""

from __future__ import annotations

import time

from airflow.executors.local_executor import LocalExecutor as AirflowsExecutor

#: Idle workers end at once.
_GRACE_SECONDS = 3.0


class LocalExecutor(AirflowsExecutor):
    """Ends with its scheduler, and its tasks with it; the next scheduler restarts them.

    By any other name Airflow would warn that its login is not for executors on several machines.
    """

    def end(self) -> None:
        """End the workers: `down` has waited for their tasks before, and after a failure nobody reads their results."""
        until = time.monotonic() + _GRACE_SECONDS
        for _ in self.workers:
            self.activity_queue.put(None)
        for worker in self.workers.values():
            worker.join(max(0.0, until - time.monotonic()))
            if worker.is_alive():
                worker.kill()
        super().end()
