"""The heartbeat of a leased process pauses and resumes with its progress; background threads end when stopped."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from deltaworks.control import paths
from deltaworks.control.background import BackgroundThread
from deltaworks.control.health.heartbeat import Heartbeat, read_heartbeat
from deltaworks.control.leased_process import LeasedProcess
from deltaworks.control.objects import LocalObjects
from deltaworks.testing import present
from tests.waiting import eventually

FOLDER = "control/thing"


class RecordedProcess:
    """A leased process whose heartbeat writes are recorded."""

    def __init__(self, root: Path, *, stall_seconds: float) -> None:
        self.objects = LocalObjects(root)
        self.process = LeasedProcess(
            self.objects, FOLDER, name="thing", ttl_seconds=30, max_run_seconds=600, stall_seconds=stall_seconds
        )

    @property
    def beat(self) -> Heartbeat:
        return present(read_heartbeat(self.objects, paths.heartbeat(FOLDER)))

    def update_heartbeat(self, rows: int) -> None:
        """Updates the heartbeat, and waits until its thread has processed the update."""
        writer = self.process.heartbeat
        for _ in range(2):  # at the second look what the first led to is over
            writer.update(rows=rows)
            eventually(lambda: not writer._wake.is_set(), "its thread has looked")


def test_the_heartbeat_pauses_during_a_stall_and_resumes_afterwards(tmp_path: Path) -> None:
    recorded = RecordedProcess(tmp_path, stall_seconds=1.0)
    with recorded.process.hold_lease():
        recorded.update_heartbeat(1)
        eventually(lambda: recorded.beat.rows == 1, "it beats")
        eventually(lambda: recorded.process.is_stalled, "it hangs")
        recorded.update_heartbeat(2)
        assert recorded.beat.rows == 1, "it beats though it hangs"
        recorded.process.record_progress()
        recorded.update_heartbeat(3)
        eventually(lambda: recorded.beat.rows == 3, "it beats again")
    assert recorded.beat.state == "ended", "the last beat is written in any case"


def test_the_end_of_a_stalled_process_is_written(tmp_path: Path) -> None:
    recorded = RecordedProcess(tmp_path, stall_seconds=0.01)
    with recorded.process.hold_lease():
        eventually(lambda: recorded.process.is_stalled, "it hangs")
    assert recorded.beat.state == "ended"


def test_pausing_counts_as_progress(tmp_path: Path) -> None:
    recorded = RecordedProcess(tmp_path, stall_seconds=0.2)
    with recorded.process.hold_lease():
        waiting = threading.Thread(target=recorded.process.pause, args=(600,))
        waiting.start()
        time.sleep(0.5)
        assert not recorded.process.is_stalled
        recorded.process.stop()
        waiting.join()


def test_without_a_limit_nothing_stalls(tmp_path: Path) -> None:
    process = LeasedProcess(LocalObjects(tmp_path), FOLDER, name="thing", ttl_seconds=30, max_run_seconds=600)
    assert not process.is_stalled


def test_a_stop_is_detected_during_a_stall_without_ticks(tmp_path: Path) -> None:
    recorded, turns = RecordedProcess(tmp_path, stall_seconds=0.01), list[int]()
    with recorded.process.hold_lease(on_tick=lambda: turns.append(1)):
        eventually(lambda: recorded.process.is_stalled, "it hangs")
        recorded.objects.put(
            paths.stop_request(FOLDER), b'{"by": "me", "reason": "over", "at": "2026-03-01T00:00:00+00:00"}'
        )
        eventually(recorded.process.stopping.is_set, "the stop is seen")
    assert turns == []


class BlockingThread(BackgroundThread):
    """Waits until it is stopped, and then until it is released."""

    def __init__(self) -> None:
        super().__init__(name="waiting")
        self.may_end = threading.Event()

    def _run(self) -> None:
        self._stopping.wait()
        self.may_end.wait()


def test_stop_returns_whether_the_thread_has_ended() -> None:
    waiting = BlockingThread()
    waiting.start()

    assert not waiting.stop(timeout_seconds=0)
    waiting.may_end.set()
    assert waiting.stop(timeout_seconds=60)
    assert waiting.stop(timeout_seconds=0)


def test_a_thread_that_never_started_counts_as_ended() -> None:
    assert BlockingThread().stop(timeout_seconds=0)
