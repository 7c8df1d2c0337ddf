"""The heartbeat of a leased process pauses during a stall and resumes with its progress."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import Heartbeat, read_heartbeat
from deltaworks.control.leased_process import LeasedProcess
from deltaworks.control.objects import LocalObjects
from tests.waiting import eventually

FOLDER = "control/thing"


class RecordedProcess:
    """A leased process whose heartbeat writes are recorded."""

    def __init__(self, root: Path, *, stall_seconds: float) -> None:
        self.objects = LocalObjects(root)
        self.tenure = LeasedProcess(
            self.objects, FOLDER, name="thing", ttl_seconds=30, max_run_seconds=600, stall_seconds=stall_seconds
        )

    @property
    def beat(self) -> Heartbeat:
        written = read_heartbeat(self.objects, paths.heartbeat(FOLDER))
        assert written is not None
        return written

    def update_heartbeat(self, rows: int) -> None:
        """Have the heartbeat say something new, and wait until its thread has looked at it."""
        writer = self.tenure.heartbeat
        for _ in range(2):  # at the second look what the first led to is over
            writer.update(rows=rows)
            eventually(lambda: not writer._wake.is_set(), "its thread has looked")


def test_the_heartbeat_pauses_during_a_stall_and_resumes_afterwards(tmp_path: Path) -> None:
    held = RecordedProcess(tmp_path, stall_seconds=1.0)
    with held.tenure.hold_lease():
        held.update_heartbeat(1)
        eventually(lambda: held.beat.rows == 1, "it beats")
        eventually(lambda: held.tenure.is_stalled, "it hangs")
        held.update_heartbeat(2)
        assert held.beat.rows == 1, "it beats though it hangs"
        held.tenure.record_progress()
        held.update_heartbeat(3)
        eventually(lambda: held.beat.rows == 3, "it beats again")
    assert held.beat.state == "ended", "the last beat is written in any case"


def test_the_end_of_a_stalled_process_is_written(tmp_path: Path) -> None:
    held = RecordedProcess(tmp_path, stall_seconds=0.01)
    with held.tenure.hold_lease():
        eventually(lambda: held.tenure.is_stalled, "it hangs")
    assert held.beat.state == "ended"


def test_pausing_counts_as_progress(tmp_path: Path) -> None:
    held = RecordedProcess(tmp_path, stall_seconds=0.2)
    with held.tenure.hold_lease():
        waiting = threading.Thread(target=held.tenure.pause, args=(600,))
        waiting.start()
        time.sleep(0.5)
        assert not held.tenure.is_stalled
        held.tenure.stop()
        waiting.join()


def test_without_a_limit_nothing_stalls(tmp_path: Path) -> None:
    tenure = LeasedProcess(LocalObjects(tmp_path), FOLDER, name="thing", ttl_seconds=30, max_run_seconds=600)
    assert not tenure.is_stalled


def test_a_stop_is_detected_during_a_stall_without_ticks(tmp_path: Path) -> None:
    held, turns = RecordedProcess(tmp_path, stall_seconds=0.01), list[int]()
    with held.tenure.hold_lease(on_tick=lambda: turns.append(1)):
        eventually(lambda: held.tenure.is_stalled, "it hangs")
        held.objects.put(
            paths.stop_request(FOLDER), b'{"by": "me", "reason": "over", "at": "2026-03-01T00:00:00+00:00"}'
        )
        eventually(held.tenure.stopping.is_set, "the stop is seen")
    assert turns == []
