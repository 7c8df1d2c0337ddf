"""Raising alerts: one notification from many processes, none lost in a crash, and no unnecessary writes."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from deltaworks.alerts.notification import Notification, truncate_detail
from deltaworks.alerts.raising import alert_key, alerts, flush_alerts, raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects, StoredObject
from deltaworks.errors import TransientError
from tests.unit.alerts.conftest import Clock

ALERT: dict[str, Any] = {"cause": "JOB_FAILED", "subject": "games__gold.rebuild_gold", "summary": "It failed."}


def spooled(objects: LocalObjects) -> list[Notification]:
    keys = objects.list(paths.alerts("spool/"))
    return [Notification.decode(found.data) for key in keys if (found := objects.get(key)) is not None]


def test_an_alert_and_its_end_are_notified_once_each(objects: LocalObjects, clock: Clock) -> None:
    first = raise_alert(objects, **ALERT, now=clock.now)
    again = [raise_alert(objects, **ALERT, now=clock.advance(60)) for _ in range(5)]
    over = resolve_alert(objects, cause=ALERT["cause"], subject=ALERT["subject"], now=clock.advance(60))
    after = resolve_alert(objects, cause=ALERT["cause"], subject=ALERT["subject"], now=clock.advance(60))

    assert first is not None
    assert over is not None
    assert again == [None] * 5
    assert after is None
    assert [(notification.kind, notification.severity) for notification in spooled(objects)] == [
        ("raised", "warning"),
        ("resolved", "warning"),
    ]
    assert spooled(objects) == [first, over]
    assert first.runbook == "reference/alerts.md#a-job-failed"
    assert first.title == "[warning] JOB_FAILED games__gold.rebuild_gold"
    assert "Runbook: reference/alerts.md#a-job-failed" in first.text
    assert over.title.startswith("[resolved]")
    assert over.since == first.since


def test_resolving_without_an_open_alert_writes_nothing(objects: LocalObjects, tmp_path: Path) -> None:
    assert resolve_alert(objects, cause="JOB_FAILED", subject="never") is None

    assert objects.list("") == []


def test_alerts_of_other_subjects_and_causes_are_independent(objects: LocalObjects) -> None:
    raise_alert(objects, **ALERT)
    raise_alert(objects, **{**ALERT, "subject": "a/b ü"})
    raise_alert(objects, **{**ALERT, "cause": "JOB_OVERDUE"})
    resolve_alert(objects, cause=ALERT["cause"], subject="a/b ü")

    open_ones = {(alert.cause, alert.subject) for alert in alerts(objects) if alert.state.is_open}
    assert open_ones == {("JOB_FAILED", ALERT["subject"]), ("JOB_OVERDUE", ALERT["subject"])}


def test_long_subjects_do_not_share_an_object() -> None:
    assert alert_key("JOB_FAILED", "x" * 300 + "1") != alert_key("JOB_FAILED", "x" * 300 + "2")
    assert len(alert_key("JOB_FAILED", "ü/" * 300).rpartition("/")[2]) < 200


@pytest.mark.parametrize("off", [False, True], ids=["protected", "without conditions"])
def test_many_concurrent_senders_send_one_notification(objects: LocalObjects, off: bool) -> None:
    store = UnconditionalObjects(objects) if off else objects
    gate, told = threading.Barrier(24), []

    def send() -> None:
        gate.wait()
        told.append(raise_alert(store, **ALERT))

    threads = [threading.Thread(target=send) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    notifications = len([notification for notification in told if notification is not None])
    assert len(told) == 24
    assert (notifications == len(spooled(objects)) == 1) == (not off)


class UnconditionalObjects:
    """A store without conditions, in which every reader sees the state before all writes."""

    def __init__(self, inner: LocalObjects) -> None:
        self._inner = inner

    def get(self, key: str) -> StoredObject | None:
        return None if "/state/" in key else self._inner.get(key)

    def put(self, key: str, data: bytes) -> None:
        self._inner.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._inner.put(key, data)
        return True

    def put_if_match(self, key: str, data: bytes, etag: str) -> str | None:
        self._inner.put(key, data)
        return etag

    def list(self, prefix: str) -> list[str]:
        return self._inner.list(prefix)

    def delete(self, key: str) -> None:
        self._inner.delete(key)


class CrashBeforeSpoolObjects(UnconditionalObjects):
    """A store that fails after the decision and before the notification is spooled."""

    def get(self, key: str) -> StoredObject | None:
        return self._inner.get(key)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if "/spool/" in key:
            raise TransientError("STORAGE_UNREACHABLE", "gone")
        return self._inner.put_if_absent(key, data)


def test_the_notification_of_a_crashed_process_is_sent_by_the_next_flush(objects: LocalObjects, clock: Clock) -> None:
    with pytest.raises(TransientError):
        raise_alert(CrashBeforeSpoolObjects(objects), **ALERT, now=clock.now)
    assert spooled(objects) == []

    flush_alerts(objects, now=clock.advance(60))
    flush_alerts(objects, now=clock.advance(60))

    assert [notification.kind for notification in spooled(objects)] == ["raised"]
    (alert,) = alerts(objects)
    assert alert.outbox == ()


def test_a_suppressed_notification_is_sent_later_without_another_raise(objects: LocalObjects, clock: Clock) -> None:
    for _ in range(4):
        raise_alert(objects, **ALERT, now=clock.advance(5))
        resolve_alert(objects, cause=ALERT["cause"], subject=ALERT["subject"], now=clock.advance(5))
    raise_alert(objects, **ALERT, now=clock.advance(5))
    assert [notification.kind for notification in spooled(objects)] == ["raised", "resolved"]

    assert flush_alerts(objects, now=clock.advance(60)) == []
    (told,) = flush_alerts(objects, now=clock.advance(900))

    assert told.kind == "raised"
    assert told.changes == 7
    assert "The alert changed 7 times" in told.text


def test_a_damaged_alert_object_is_replaced(objects: LocalObjects) -> None:
    objects.put(alert_key(ALERT["cause"], ALERT["subject"]), b'{"cause": "JOB_F')

    assert resolve_alert(objects, cause=ALERT["cause"], subject=ALERT["subject"]) is None
    assert raise_alert(objects, **ALERT) is not None


def test_alerts_that_ended_long_ago_are_deleted(objects: LocalObjects, clock: Clock) -> None:
    raise_alert(objects, **ALERT, now=clock.now)
    raise_alert(objects, **{**ALERT, "subject": "open"}, now=clock.now)
    resolve_alert(objects, cause=ALERT["cause"], subject=ALERT["subject"], now=clock.advance(60))

    flush_alerts(objects, now=clock.now + timedelta(days=29))
    assert len(list(alerts(objects))) == 2
    flush_alerts(objects, now=clock.now + timedelta(days=31))

    assert [alert.subject for alert in alerts(objects)] == ["open"]


def test_details_are_plain_and_truncated() -> None:
    assert truncate_detail({"at": Path("x"), "n": 1}) == {"at": "x", "n": 1}
    assert len(truncate_detail({"log": "x" * 100_000})["log"]) < 5_000
