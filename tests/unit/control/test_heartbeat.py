"""The heartbeat goes on whatever storage does, and storage never fails what it reports on."""

from __future__ import annotations

import json
import time

from deltaworks.control.heartbeat import Heartbeat, HeartbeatWriter, read_heartbeat
from deltaworks.control.objects import LocalObjects, ObjectStore

KEY = "control/heartbeat.json"


def make(objects: ObjectStore, beat_seconds: float = 0.05) -> HeartbeatWriter:
    return HeartbeatWriter(objects, KEY, pipeline="games", trigger_seconds=60, beat_seconds=beat_seconds)


def wait_for(objects: ObjectStore, condition, seconds: float = 5.0) -> Heartbeat | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        beat = read_heartbeat(objects, KEY)
        if beat is not None and condition(beat):
            return beat
        time.sleep(0.01)
    return None


def test_there_is_no_heartbeat_before_the_first(local_objects: LocalObjects) -> None:
    assert read_heartbeat(local_objects, KEY) is None


def test_it_beats_without_being_asked_and_says_the_newest(local_objects: LocalObjects) -> None:
    writer = make(local_objects)
    writer.start()
    first = wait_for(local_objects, lambda beat: beat.state == "starting")
    assert first is not None

    assert wait_for(local_objects, lambda beat: beat.written_at > first.written_at) is not None
    writer.update(state="running", batch_id=7)
    assert wait_for(local_objects, lambda beat: (beat.state, beat.batch_id) == ("running", 7)) is not None
    writer.close(state="ended")


def test_an_update_does_not_wait_for_the_next_beat(local_objects: LocalObjects) -> None:
    writer = make(local_objects, beat_seconds=60.0)
    writer.start()

    writer.update(state="running")

    assert wait_for(local_objects, lambda beat: beat.state == "running") is not None
    writer.close(state="ended")


def test_the_last_word_is_written_before_close_returns(local_objects: LocalObjects) -> None:
    writer = make(local_objects, beat_seconds=60.0)
    writer.start()

    writer.close(state="failed", error={"condition": "X"})

    beat = read_heartbeat(local_objects, KEY)
    assert beat is not None
    assert (beat.state, beat.error) == ("failed", {"condition": "X"})


def test_it_outlives_a_storage_that_fails_for_a_while(faulty_objects) -> None:
    writer = make(faulty_objects)
    writer.start()
    faulty_objects.fail_before = lambda call: call == "put"
    writer.update(batch_id=1)
    time.sleep(0.2)

    faulty_objects.fail_before = lambda call: False

    assert wait_for(faulty_objects, lambda beat: beat.batch_id == 1) is not None
    faulty_objects.fail_before = lambda call: call == "put"
    writer.close(state="ended")


def test_closing_one_that_was_never_started_is_harmless(local_objects: LocalObjects) -> None:
    make(local_objects).close(state="failed")

    assert read_heartbeat(local_objects, KEY) is None


def test_a_heartbeat_of_a_later_release_is_still_read(local_objects: LocalObjects) -> None:
    writer = make(local_objects)
    writer.start()
    writer.close(state="ended")
    found = local_objects.get(KEY)
    assert found is not None
    local_objects.put(KEY, json.dumps({**json.loads(found.data), "of_tomorrow": 1}).encode())

    beat = read_heartbeat(local_objects, KEY)

    assert beat is not None
    assert beat.state == "ended"
