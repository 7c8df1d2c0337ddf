"""A scheduler with a continuous task ends, so that it can be restarted."""

from __future__ import annotations

import multiprocessing
import threading
import time

import pytest


@pytest.mark.parametrize("off", [False, True], ids=["protected", "without"])
def test_an_executor_ends_with_a_continuous_task(off: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.executors.local_executor import LocalExecutor as AirflowsExecutor

    from deltaworks.airflow.executor import GRACE_VARIABLE, LocalExecutor

    monkeypatch.setenv(GRACE_VARIABLE, "3")
    executor = AirflowsExecutor(parallelism=2) if off else LocalExecutor(parallelism=2)
    executor.start()
    endless = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    endless.start()
    assert endless.pid is not None
    executor.workers[endless.pid] = endless
    ending = threading.Thread(target=executor.end, daemon=True)
    ending.start()

    ending.join(6 if off else 120)

    assert ending.is_alive() == off
    if off:
        endless.kill()
        ending.join(120)
    assert not ending.is_alive()
