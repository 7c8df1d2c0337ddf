"""The heartbeat survives storage failures and never affects its process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from deltaworks.control.health.heartbeat import Heartbeat, HeartbeatWriter, read_heartbeat
from deltaworks.control.objects import LocalObjects, ObjectStore
from tests.unit.control.conftest import FaultyObjects
from tests.waiting import eventually

KEY = "control/heartbeat.json"


def start_writer(objects: ObjectStore, beat_seconds: float = 0.05) -> HeartbeatWriter:
    return HeartbeatWriter(objects, KEY, pipeline="games", trigger_seconds=60, interval_seconds=beat_seconds)


def await_heartbeat(objects: ObjectStore, condition: Callable[[Heartbeat], bool]) -> Heartbeat:
    """Waits for the first heartbeat that satisfies the condition."""
    found: list[Heartbeat] = []

    def fits() -> bool:
        beat = read_heartbeat(objects, KEY)
        found[:] = [beat] if beat is not None and condition(beat) else []
        return bool(found)

    eventually(fits, "a heartbeat says so")
    return found[0]


def test_there_is_no_heartbeat_before_the_first(local_objects: LocalObjects) -> None:
    assert read_heartbeat(local_objects, KEY) is None


def test_it_writes_the_newest_state_at_each_interval(local_objects: LocalObjects) -> None:
    writer = start_writer(local_objects)
    writer.start()
    first = await_heartbeat(local_objects, lambda beat: beat.state == "starting")

    await_heartbeat(local_objects, lambda beat: beat.written_at > first.written_at)
    writer.update(state="running", batch_id=7)
    assert await_heartbeat(local_objects, lambda beat: beat.state == "running").batch_id == 7
    writer.close(state="ended")


def test_an_update_does_not_wait_for_the_interval(local_objects: LocalObjects) -> None:
    writer = start_writer(local_objects, beat_seconds=3_600.0)
    writer.start()

    writer.update(state="running")

    assert await_heartbeat(local_objects, lambda beat: beat.state == "running").batch_id is None
    writer.close(state="ended")


def test_an_update_without_news_writes_nothing(local_objects: LocalObjects) -> None:
    writer = start_writer(local_objects, beat_seconds=3_600.0)
    writer.start()
    writer.update(state="idle", backlog_files=3)
    first = await_heartbeat(local_objects, lambda beat: beat.state == "idle")

    for _ in range(20):
        writer.update(state="idle", backlog_files=3)
        time.sleep(0.01)
    assert await_heartbeat(local_objects, lambda beat: True).written_at == first.written_at

    writer.update(backlog_files=4)
    await_heartbeat(local_objects, lambda beat: beat.backlog_files == 4)
    writer.close(state="ended")


def test_the_final_state_is_written_before_close_returns(local_objects: LocalObjects) -> None:
    writer = start_writer(local_objects, beat_seconds=60.0)
    writer.start()

    writer.close(state="failed", error={"condition": "X"})

    beat = read_heartbeat(local_objects, KEY)
    assert beat is not None
    assert (beat.state, beat.error) == ("failed", {"condition": "X"})


def test_it_survives_temporary_storage_failures(faulty_objects: FaultyObjects) -> None:
    writer = start_writer(faulty_objects)
    writer.start()
    refused = []
    faulty_objects.fail_before = lambda call: call == "put" and refused.append(call) is None
    writer.update(batch_id=1)
    eventually(lambda: len(refused) >= 2, "the writer tries, and tries again")

    faulty_objects.fail_before = lambda call: False

    assert await_heartbeat(faulty_objects, lambda beat: beat.batch_id == 1).state == "starting"
    faulty_objects.fail_before = lambda call: call == "put"
    writer.close(state="ended")


def test_closing_one_that_was_never_started_is_harmless(local_objects: LocalObjects) -> None:
    start_writer(local_objects).close(state="failed")

    assert read_heartbeat(local_objects, KEY) is None


def test_a_heartbeat_of_a_later_release_is_still_read(local_objects: LocalObjects) -> None:
    writer = start_writer(local_objects)
    writer.start()
    writer.close(state="ended")
    found = local_objects.get(KEY)
    assert found is not None
    local_objects.put(KEY, json.dumps({**json.loads(found.data), "of_tomorrow": 1}).encode())

    beat = read_heartbeat(local_objects, KEY)

    assert beat is not None
    assert beat.state == "ended"
