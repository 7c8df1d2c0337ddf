"""The stop flag."""

from __future__ import annotations

from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.objects import ObjectStore


def test_a_stop_is_requested_read_and_withdrawn(objects: ObjectStore) -> None:
    flag = StopFlag(objects, "control/stop.json")
    assert flag.read() is None

    asked = flag.set(by="somebody", reason="an upgrade")

    read = StopFlag(objects, "control/stop.json").read()
    assert read == asked
    assert (asked.by, asked.reason) == ("somebody", "an upgrade")
    flag.clear()
    assert flag.read() is None


def test_setting_and_clearing_twice_is_harmless(objects: ObjectStore) -> None:
    flag = StopFlag(objects, "control/stop.json")

    flag.clear()
    flag.set(by="a", reason="x")
    flag.set(by="b", reason="y")
    request = flag.read()
    flag.clear()
    flag.clear()

    assert request is not None
    assert request.by == "b"
    assert flag.read() is None
