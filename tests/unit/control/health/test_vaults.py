"""Verdicts on vaults: whether the job ingests encrypted files, and whether it gets its keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deltaworks.control.health.processes import evaluate_vault
from deltaworks.control.records.erasure import VaultHeartbeat
from deltaworks.errors.conditions import alert_for_verdict

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def ago(**span: float) -> str:
    return (NOW - timedelta(**span)).isoformat()


def heartbeat_of(**fields: Any) -> VaultHeartbeat:
    return VaultHeartbeat(
        **{"namespace": "players", "written_at": ago(minutes=3), "caught_up_at": ago(minutes=3), **fields}
    )


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({}, "OK"),
        ({"caught_up_at": ago(minutes=59)}, "OK"),
        ({"caught_up_at": ago(minutes=61), "waiting": 4}, "VAULT_BEHIND"),
        ({"written_at": ago(hours=3), "caught_up_at": ago(hours=3)}, "VAULT_BEHIND"),
        ({"failure_condition": "STORAGE_UNREACHABLE", "failing_since": ago(minutes=5)}, "OK"),
        ({"failure_condition": "KEY_SERVICE_UNREACHABLE", "failing_since": ago(minutes=5)}, "KEYS_UNREACHABLE"),
        ({"unreadable": ("sealed/edge/1-2.dws: SEALED_UNREADABLE",)}, "VAULT_UNREADABLE"),
        ({"epoch": 3, "epoch_at": ago(days=39)}, "OK"),
        ({"epoch": 3, "epoch_at": ago(days=41)}, "VAULT_EPOCH_OLD"),
    ],
)
def test_a_vault_is_evaluated_from_the_record_of_its_job(fields: dict[str, Any], cause: str) -> None:
    verdict = evaluate_vault("players", heartbeat_of(**fields), now=NOW)

    assert (verdict.kind, verdict.cause, verdict.is_unhealthy) == ("vault", cause, cause != "OK")
    assert cause == "OK" or alert_for_verdict(cause) == "VAULT_UNHEALTHY"
    assert cause == "OK" or verdict.next_step


def test_a_vault_whose_job_never_ran_has_an_hour_of_grace() -> None:
    first = evaluate_vault("players", None, now=NOW)
    later = evaluate_vault("players", None, now=NOW + timedelta(minutes=30), previous=first)
    at_last = evaluate_vault("players", None, now=NOW + timedelta(minutes=61), previous=later)
    still = evaluate_vault("players", None, now=NOW + timedelta(minutes=62), previous=at_last)

    assert [verdict.cause for verdict in (first, later, at_last, still)] == [
        *("STARTING", "STARTING"),
        *("VAULT_BEHIND", "VAULT_BEHIND"),
    ]
