"""Erasure requests become due while there is time to act, and overdue after their deadline."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from deltaworks.alerts.erasures import DUE, OVERDUE, check_erasure
from deltaworks.control.objects import LocalObjects
from deltaworks.control.records.erasure import ErasureRequest, Erasures
from deltaworks.errors import ConcurrencyError, ConfigError

RECEIVED = dt.datetime(2026, 11, 2, tzinfo=dt.UTC)
RETENTION = dt.timedelta(hours=168)


@pytest.fixture
def erasures(tmp_path: Path) -> Erasures:
    return Erasures(LocalObjects(tmp_path), "players")


@pytest.fixture
def request_(erasures: Erasures) -> ErasureRequest:
    return erasures.create(
        "e1",
        received_at=RECEIVED,
        purge_by=RECEIVED + dt.timedelta(days=21),
        deadline_at=RECEIVED + dt.timedelta(days=30),
        digest="d",
        by="tests",
    )


def finding(request: ErasureRequest, day: float) -> tuple[str, str] | None:
    found = check_erasure(request, retention=RETENTION, now=RECEIVED + dt.timedelta(days=day))
    return None if found is None else (found.cause, found.severity)


@pytest.mark.parametrize(
    ("day", "expected"),
    [
        (1, None),
        (20.9, None),
        (21.1, (DUE, "warning")),
        (26.9, (DUE, "warning")),
        (27.1, (DUE, "critical")),
        (30, (OVERDUE, "critical")),
    ],
)
def test_requests_with_remaining_rows_become_due(
    request_: ErasureRequest, day: float, expected: tuple[str, str] | None
) -> None:
    assert finding(request_, day) == expected


def test_after_the_purge_only_the_deadline_counts(erasures: Erasures, request_: ErasureRequest) -> None:
    purged = erasures.record_state(request_, "purged", by="tests")
    assert finding(purged, 26.9) is None
    assert finding(purged, 27.1) == (DUE, "critical")


def test_an_extension_moves_all_deadlines_once(erasures: Erasures, request_: ErasureRequest) -> None:
    now = RECEIVED + dt.timedelta(days=20)
    extended = erasures.extend(request_, reason="many copies", by="dpo", now=now)
    assert finding(extended, 31) is None
    assert finding(extended, 90) == (OVERDUE, "critical")
    with pytest.raises(ConfigError, match="ERASURE_NOT_EXTENDED"):
        erasures.extend(extended, reason="again", by="dpo", now=now)


def test_a_started_request_cannot_be_refused(erasures: Erasures, request_: ErasureRequest) -> None:
    with pytest.raises(ConfigError, match="ERASURE_REASON_MISSING"):
        erasures.refuse(request_, reason=" ", by="dpo")
    suppressed = erasures.record_state(request_, "suppressed", by="tests")
    with pytest.raises(ConfigError, match="ERASURE_STARTED"):
        erasures.refuse(suppressed, reason="invoices", by="dpo")


def test_a_refused_request_is_final(erasures: Erasures, request_: ErasureRequest) -> None:
    refused = erasures.refuse(request_, reason="invoices", by="dpo")
    assert finding(refused, 40) is None
    assert erasures.open_requests() == []


def test_one_of_two_concurrent_state_changes_fails(erasures: Erasures, request_: ErasureRequest) -> None:
    erasures.record_state(request_, "resolved", by="one")
    with pytest.raises(ConcurrencyError, match="ERASURE_CONTENDED"):
        erasures.record_state(request_, "suppressed", by="two")
