"""Causes of health verdicts on streams and relays, with their alerts."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition
from deltaworks.errors import ContractError

HEALTH: Final = (
    Condition("OK", "healthy", "none"),
    Condition("BACKLOG", "lagging: the oldest unread input is older than five minutes", "none"),
    Condition("STARTING", "it is starting", "none"),
    Condition("BETWEEN_RUNS", "its run has just ended, and the next one is starting", "none"),
    Condition("STOP_REQUESTED", "it was stopped on request", "`deltaworks start NAME`"),
    Condition("PAUSED", "its DAG is paused after a clean end", "`deltaworks start NAME`"),
    Condition(
        "NEVER_STARTED",
        "it was never started",
        "check its DAG, the free slots of the pool, and the scheduler",
        alert="STREAM_UNHEALTHY",
    ),
    Condition(
        "NOT_RESTARTED",
        "its run ended, and no new run starts",
        "check its DAG, the free slots of the pool, and the scheduler",
        alert="STREAM_UNHEALTHY",
    ),
    Condition(
        "RESTART_LOOP",
        "it restarts repeatedly without becoming healthy",
        "open the log of the last failed run of its DAG",
        alert="STREAM_UNHEALTHY",
    ),
    Condition(
        "PAUSED_WITHOUT_STOP",
        "its DAG is paused without a stop request",
        "fix the cause, then `deltaworks start NAME`",
        alert="STOPPED_BY_HAND",
    ),
    Condition(
        "HEARTBEAT_STALE",
        "the process hangs or has died",
        "clear its task: it resumes",
        alert="STREAM_HUNG",
    ),
    Condition(
        "HEARTBEAT_UNREADABLE",
        "the lake's storage does not answer",
        "check endpoint and credentials",
        alert="STREAM_UNHEALTHY",
    ),
    Condition(
        "INVALID_DECLARATION",
        "its spec is invalid, so no new run starts",
        "fix the named error, then run `deltaworks pipelines check`",
        alert="STREAM_UNHEALTHY",
    ),
    Condition(
        "COLLECTOR_STALE",
        "a collector has written no heartbeat for two minutes",
        "check its process and log; acknowledged events are in its spool",
        alert="COLLECTOR_UNHEALTHY",
    ),
    Condition(
        "SPOOL_OLD",
        "a collector's oldest event is too old: its sink is unreachable or slow",
        "fix the named sink; senders are rejected once the spool is full",
        alert="COLLECTOR_UNHEALTHY",
    ),
    Condition(
        "SPOOL_DAMAGED",
        "a spool file is damaged and kept; its intact events are delivered",
        "check the disk, then move the `.damaged` file away",
        alert="COLLECTOR_UNHEALTHY",
    ),
    Condition(
        "EVENTS_UNDELIVERABLE",
        "a sink permanently rejects events, which are kept in a spool file",
        "send them another way, then move the file away",
        alert="COLLECTOR_UNHEALTHY",
    ),
    Condition(
        "EVENTS_LOST",
        "a collector's event numbers are neither in a table nor in quarantine, an hour after acknowledgement",
        "search the landing bucket for the named ranges, and reconcile the relay",
        alert="EVENTS_LOST",
    ),
    Condition(
        "VAULT_BEHIND",
        "the vault's job has not caught up for an hour",
        "check its DAG's last runs; no data is lost",
        runbook="how-to/run-the-vault.md#the-vault-falls-behind",
        alert="VAULT_UNHEALTHY",
    ),
    Condition(
        "KEYS_UNREACHABLE",
        "the vault's job gets no keys",
        "check the key service and the role's grants; collectors stop accepting after a day",
        runbook="how-to/run-the-vault.md#the-key-service-is-unavailable",
        alert="VAULT_UNHEALTHY",
    ),
    Condition(
        "VAULT_UNREADABLE",
        "the vault's job cannot decrypt some files; they stay",
        "check which keyring encrypted them, and whether they were truncated or moved",
        runbook="how-to/run-the-vault.md#files-cannot-be-decrypted",
        alert="VAULT_UNHEALTHY",
    ),
    Condition(
        "VAULT_EPOCH_OLD",
        "the vault's keys were not rotated for forty days; copies of destroyed keys may decrypt",
        "run `deltaworks privacy maintain NAMESPACE --no-dry-run`",
        runbook="how-to/run-the-vault.md#rotation",
        alert="VAULT_UNHEALTHY",
    ),
    Condition(
        "START_SLOW", "it has been starting for more than ten minutes", "open its driver log", alert="STREAM_UNHEALTHY"
    ),
    Condition(
        "TABLE_SUSPENDED",
        "commits to a table failed; the stream continues and holds its rows",
        "fix the table, then `deltaworks tables resume PIPELINE TABLE`",
        alert="TABLE_SUSPENDED",
        error=ContractError,
    ),
    Condition(
        "NO_PROGRESS",
        "it has a backlog, but no batch completed for 15 minutes",
        "open the Spark UI and the driver log",
        alert="STREAM_UNHEALTHY",
    ),
    Condition(
        "BACKLOG_OLD",
        "the oldest unread input is older than an hour",
        "add cores, or use larger batches",
        alert="BACKLOG_OLD",
    ),
    Condition(
        "SOURCE_EXPIRES",
        "the source will soon delete unread input, or has done so",
        "raise its retention",
        alert="DATA_LOSS_NEAR",
    ),
    Condition(
        "INPUT_SILENT",
        "no input for longer than declared or usual",
        "ask the producer",
        alert="INPUT_SILENT",
    ),
    Condition(
        "ALERTS_UNDELIVERED",
        "no channel reaches a person: all are logs",
        "set `DELTAWORKS_ALERTS_WEBHOOK`, or declare a channel under `alerts`; then `deltaworks alerts check --send`",
        runbook="reference/alerts.md#no-alert-reaches-a-person",
    ),
    Condition(
        "ROWS_QUARANTINED",
        "the last hour's quarantined events exceed the limit; the reasons are counted",
        "run `deltaworks quarantine list PIPELINE`; fix the producer or the spec; then replay",
        runbook="reference/alerts.md#too-much-goes-to-quarantine",
        alert="ROWS_QUARANTINED",
    ),
    Condition(
        "GOLD_REFRESH_FAILING",
        "a gold table cannot be built; batches commit, and it retries",
        "fix the named condition of the build",
        runbook="reference/alerts.md#gold-is-stale",
        alert="GOLD_REFRESH_FAILING",
    ),
    Condition(
        "DEAD_LETTERS",
        "messages are in a relay's dead-letter queue",
        "`deltaworks files redrive RELAY`; until then their files are not read",
        alert="DATA_LOST",
    ),
    Condition(
        "FILES_LOST",
        "objects were never announced, or deleted unread; some are named",
        "run `deltaworks files show` for one of them",
        runbook="how-to/operate.md#files-that-are-missing",
        alert="DATA_LOST",
    ),
    Condition(
        "RECORDS_LOST",
        "records expired unread; some ranges are named",
        "`records_lost` rows in quarantine list them",
        runbook="how-to/operate.md#records-that-expired",
        alert="DATA_LOST",
    ),
)
