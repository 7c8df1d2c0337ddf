"""A silence suppresses only notifications, and people are notified when it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.alerts import raising
from deltaworks.alerts.notification import AlertState, update_state
from deltaworks.alerts.raising import alerts, flush_alerts, raise_alert, resolve_alert
from deltaworks.alerts.silences import KEEP_DAYS, MAX_HOURS, Silence, create_silence, end_silences, silences
from deltaworks.control.objects import LocalObjects
from deltaworks.control.paths import silence as silence_key
from deltaworks.control.paths import silences as silences_folder
from deltaworks.errors import ConfigError
from deltaworks.errors.conditions import catalog
from tests.recording_objects import NotingObjects
from tests.unit.alerts.conftest import START, Clock

STALE: dict[str, Any] = {"cause": "GOLD_STALE", "subject": "games.daily", "summary": "It is late."}


def silence(objects: LocalObjects, clock: Clock, **more: Any) -> Silence:
    said: dict[str, Any] = {
        "pipeline": "games",
        "cause": "GOLD_STALE",
        "hours": 2,
        "reason": "a backfill runs",
        "by": "ada",
    }
    return create_silence(objects, **{**said, **more}, now=clock.now)


def sent_kinds(objects: LocalObjects, clock: Clock, seconds: float = 0) -> list[str]:
    return [notification.kind for notification in flush_alerts(objects, now=clock.advance(seconds))]


def test_an_alert_raised_in_a_silence_is_open_without_notification(objects: LocalObjects, clock: Clock) -> None:
    silence(objects, clock)

    notification = raise_alert(objects, **STALE, now=clock.advance(60))

    assert notification is None
    (alert,) = alerts(objects)
    assert (alert.state.is_open, alert.state.notified_severity, alert.summary) == (True, None, "It is late.")
    assert objects.list("control/alerts/spool/") == []


def test_open_alerts_are_notified_when_a_silence_ends(objects: LocalObjects, clock: Clock) -> None:
    silence(objects, clock)
    raise_alert(objects, **STALE, now=clock.advance(60))
    assert sent_kinds(objects, clock, 60) == []

    assert sent_kinds(objects, clock, 2 * 3_600) == ["raised"]
    assert sent_kinds(objects, clock, 60) == [], "once"


def test_known_alerts_are_notified_again_when_a_silence_ends(objects: LocalObjects, clock: Clock) -> None:
    assert raise_alert(objects, **STALE, now=clock.now) is not None
    silence(objects, clock, hours=1)
    assert sent_kinds(objects, clock, 60) == []

    assert sent_kinds(objects, clock, 3_600) == ["reminder"], "four hours would have been its own time"
    assert sent_kinds(objects, clock, 60) == []


def test_the_end_of_a_known_alert_is_suppressed_until_the_silence_ends(objects: LocalObjects, clock: Clock) -> None:
    raise_alert(objects, **STALE, now=clock.now)
    silence(objects, clock, hours=1)

    assert resolve_alert(objects, cause="GOLD_STALE", subject="games.daily", now=clock.advance(600)) is None
    assert not next(alerts(objects)).state.is_open
    assert sent_kinds(objects, clock, 3_600) == ["resolved"]


def test_an_alert_that_opens_and_ends_in_a_silence_is_never_notified(objects: LocalObjects, clock: Clock) -> None:
    silence(objects, clock, hours=1)
    raise_alert(objects, **STALE, now=clock.advance(60))
    resolve_alert(objects, cause="GOLD_STALE", subject="games.daily", now=clock.advance(60))

    assert sent_kinds(objects, clock, 3_600) == []


def test_a_silence_ended_early_notifies_the_same_way(objects: LocalObjects, clock: Clock) -> None:
    silence(objects, clock)
    raise_alert(objects, **STALE, now=clock.advance(60))

    assert len(end_silences(objects, pipeline="games", cause="GOLD_STALE", now=clock.advance(60))) == 1
    assert end_silences(objects, pipeline="games", cause="GOLD_STALE", now=clock.now) == []

    assert sent_kinds(objects, clock, 1) == ["raised"]


@pytest.mark.parametrize(
    ("cause", "subject", "held"),
    [
        ("GOLD_STALE", "games.daily", True),
        ("GOLD_STALE", "games.hourly", False),
        ("GOLD_STALE", "crm.daily", False),
        ("GOLD_STALE", "gamesx.daily", False),
        ("JOB_OVERDUE", "games.daily", False),
    ],
)
def test_a_silence_covers_one_cause_and_subjects_of_its_pipeline(
    objects: LocalObjects, clock: Clock, cause: str, subject: str, held: bool
) -> None:
    silence(objects, clock, subject="*.daily")

    notification = raise_alert(objects, **{**STALE, "cause": cause, "subject": subject}, now=clock.advance(1))

    assert (notification is None) == held


def test_subjects_of_every_form_name_their_pipeline(clock: Clock, objects: LocalObjects) -> None:
    one = silence(objects, clock)
    for subject in ("stream games", "games.purchase", "games__gold.rebuild_gold", "games"):
        assert one.covers("GOLD_STALE", subject), subject


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 2, "id": "x"}'])
def test_an_unreadable_silence_has_no_effect(objects: LocalObjects, clock: Clock, torn: bytes) -> None:
    one = silence(objects, clock)
    objects.put(silence_key(one.id), torn)

    assert raise_alert(objects, **STALE, now=clock.now) is not None


def test_an_invalid_time_has_no_effect(objects: LocalObjects, clock: Clock) -> None:
    one = silence(objects, clock)
    objects.put(silence_key(one.id), one.replace(until="soon").encode())

    assert raise_alert(objects, **STALE, now=clock.now) is not None
    assert silences(objects) == []


@pytest.mark.parametrize(
    "wrong",
    [{"cause": "GOLD_STAIL"}, {"hours": 0}, {"hours": MAX_HOURS + 1}, {"reason": " "}, {"subject": ""}],
)
def test_a_silence_without_cause_time_or_reason_is_rejected(
    objects: LocalObjects, clock: Clock, wrong: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as refused:
        silence(objects, clock, **wrong)

    assert refused.value.condition == "SILENCE_INVALID"
    assert silences(objects) == []


def test_a_crash_at_the_end_of_a_silence_is_handled_by_the_next_process(
    objects: LocalObjects, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence(objects, clock, hours=1)
    raise_alert(objects, **STALE, now=clock.advance(60))

    def die(*_: object, **__: object) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(raising, "_update_alert", die)
        with pytest.raises(OSError, match="killed"):
            flush_alerts(objects, now=clock.advance(3_600))

    assert sent_kinds(objects, clock, 60) == ["raised"]


def test_flushing_many_alerts_reads_the_silences_once(tmp_path: Path, clock: Clock) -> None:
    objects = NotingObjects(tmp_path / "lake")
    silence(objects, clock)
    for number in range(3):
        raise_alert(objects, **{**STALE, "subject": f"games.table_{number}"}, now=clock.advance(1))
    objects.reads.clear()

    assert sent_kinds(objects, clock, 60) == []
    assert objects.reads.count(silences_folder()) == 1
    assert len(sent_kinds(objects, clock, 2 * 3_600)) == 3


def test_old_silences_are_deleted(objects: LocalObjects, clock: Clock) -> None:
    silence(objects, clock, hours=1)
    sent_kinds(objects, clock, 3_601)
    assert len(silences(objects)) == 1, "they are shown for a while"

    sent_kinds(objects, clock, KEEP_DAYS * 86_400)

    assert silences(objects) == []


checks = st.lists(st.tuples(st.integers(1, 2_000), st.booleans(), st.booleans()), max_size=60)


@settings(deadline=None)
@given(checks)
def test_a_silence_updates_the_state_and_sends_nothing(seen: list[tuple[int, bool, bool]]) -> None:
    clock, cause = Clock(), catalog().alerts["GOLD_STALE"]
    loud = quiet = AlertState()
    for seconds, is_open, silent in seen:
        clock.advance(seconds)
        severity = "warning" if is_open else None
        loud, _ = update_state(loud, cause, severity=severity, now=clock.now)  # type: ignore[arg-type]
        before = quiet
        quiet, kind = update_state(quiet, cause, severity=severity, now=clock.now, is_silenced=silent)  # type: ignore[arg-type]
        assert (quiet.is_open, quiet.since, quiet.severity) == (loud.is_open, loud.since, loud.severity)
        if silent:
            assert kind is None
            assert (quiet.notified_severity, quiet.last_notified_at) == (
                before.notified_severity,
                before.last_notified_at,
            )
    assert clock.now >= START


def test_silences_are_stored_where_pages_read_them(tmp_path: Path, clock: Clock) -> None:
    objects = LocalObjects(tmp_path)
    one = silence(objects, clock)

    assert objects.list("control/alerts/silences/") == [f"control/alerts/silences/{one.id}.json"]
