"""The intake while messages are held for a long time."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from deltaworks.sources.objects.relay.intake import Intake
from tests.waiting import eventually

pytestmark = pytest.mark.integration


def test_the_intake_extends_messages_held_for_half_their_time(landing: Any) -> None:
    landing.returns_after(2)
    landing.send(*(landing.notification(f"games/{number}") for number in range(3)))
    intake = Intake(landing.queue(), threads=1, max_in_flight=100)
    intake.start()
    eventually(lambda: len(intake.held_messages()) == 3, "all are held")
    time.sleep(4)
    assert len(intake.held_messages()) == 3
    assert landing.waiting() == (0, 3)
    assert intake.extended >= 3
    intake.release(intake.held_messages())
    assert intake.held_messages() == []
    intake.close(join_seconds=3)


def test_a_full_buffer_stops_receiving(landing: Any) -> None:
    landing.send(*(landing.notification(f"games/{number}") for number in range(80)))
    intake = Intake(landing.queue(), threads=1, max_in_flight=20)
    intake.start()
    time.sleep(2)
    held = len(intake.held_messages())
    assert 20 <= held <= 30
    assert sum(landing.waiting()) == 80
    assert len(intake.close(join_seconds=3)) >= held


def test_messages_that_waited_long_are_collected_together(landing: Any) -> None:
    landing.send(*(landing.notification(f"games/{number}") for number in range(40)))
    intake = Intake(landing.queue(), threads=2, max_in_flight=100)
    intake.start()
    eventually(lambda: len(intake.held_messages()) == 40, "all are held")
    time.sleep(0.5)
    taken = intake.collect(max_messages=100, timeout_seconds=0.1, wake=threading.Event())
    assert len(taken) == 40
    intake.close(join_seconds=3)
