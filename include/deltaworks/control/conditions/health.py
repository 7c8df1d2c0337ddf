"""Causes of a health verdict: what the health check finds of a stream or a relay, and the alert that reports it."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition
from deltaworks.errors import ContractError

HEALTH: Final = (
    Condition("OK", "healthy", "none"),
    Condition("BACKLOG", "lagging: what waits has waited for longer than five minutes", "none"),
    Condition("STARTING", "it starts", "none"),
    Condition("BETWEEN_RUNS", "it ended a run moments ago, and the next one is starting", "none"),
    Condition("STOP_REQUESTED", "it was stopped on request", "`deltaworks start NAME`"),
    Condition("PAUSED", "its DAG is paused after a clean end", "`deltaworks start NAME`"),
    Condition(
        "NEVER_STARTED",
        "nothing has ever started it",
        "look at its DAG, the pool's free slots, the scheduler",
        alert="STREAM_UNHEALTHY",
    ),
    Condition(
        "NOT_RESTARTED",
        "it ended a run, and nothing starts the next one",
        "look at its DAG, the pool's free slots, the scheduler",
        alert="STREAM_UNHEALTHY",
    ),
    Condition(
        "RESTART_LOOP",
        "it starts again and again without getting well",
        "open the log of its DAG's last failed run",
        alert="STREAM_UNHEALTHY",
    ),
    Condition(
        "PAUSED_WITHOUT_STOP",
        "its DAG is paused though nobody stopped it",
        "mend the cause, then `deltaworks start NAME`",
        alert="STOPPED_BY_HAND",
    ),
    Condition(
        "HEARTBEAT_STALE",
        "the process hangs or is gone",
        "clear its task: it resumes where it was",
        alert="STREAM_HUNG",
    ),
    Condition(
        "HEARTBEAT_UNREADABLE",
        "the lake's storage does not answer",
        "check endpoint and keys",
        alert="STREAM_UNHEALTHY",
    ),
    Condition(
        "INVALID_DECLARATION",
        "its declaration is wrong, so that nothing starts it; a run under way continues",
        "mend what is named, then `deltaworks pipelines check`",
        alert="STREAM_UNHEALTHY",
    ),
    Condition(
        "COLLECTOR_STALE",
        "a process of a collector has written no heartbeat for two minutes, and has not said that it ended",
        "look at its process and its log; what it has acknowledged is on its disk, and is delivered at its next start",
        alert="COLLECTOR_UNHEALTHY",
    ),
    Condition(
        "SPOOL_OLD",
        "the oldest event on a collector's disk has waited too long: its sink is away, or slower than what comes in",
        "mend the sink that is named; senders are turned away once the spool is full",
        alert="COLLECTOR_UNHEALTHY",
    ),
    Condition(
        "SPOOL_DAMAGED",
        "a file of a collector's spool is damaged inside; its good events are delivered, and the file is kept",
        "look at the disk; see what is missing, then move the `.damaged` file away",
        alert="COLLECTOR_UNHEALTHY",
    ),
    Condition(
        "EVENTS_UNDELIVERABLE",
        "a sink can never take some events, which lie in a file of the spool",
        "send them another way, then move the `aside-` file away",
        alert="COLLECTOR_UNHEALTHY",
    ),
    Condition(
        "EVENTS_LOST",
        "numbers of a collector's events are in no table and not in quarantine, an hour after they were acknowledged",
        "the ranges are named: look for their objects in the landing bucket, and reconcile the relay",
        alert="EVENTS_LOST",
    ),
    Condition(
        "VAULT_BEHIND",
        "the vault's job has not taken in all that was sealed for an hour",
        "look at the last runs of its DAG; what is sealed waits, and nothing is lost",
        runbook="how-to/run-the-vault.md#it-falls-behind",
        alert="VAULT_UNHEALTHY",
    ),
    Condition(
        "KEYS_UNREACHABLE",
        "the vault's job gets no keys from the key service",
        "see whether the service answers and grants the role its keys; collectors stop taking events after a day",
        runbook="how-to/run-the-vault.md#keys-cannot-be-had",
        alert="VAULT_UNHEALTHY",
    ),
    Condition(
        "VAULT_UNREADABLE",
        "sealed files cannot be opened by the vault's job; they stay where they are",
        "see under which keyring they were sealed, and whether they were cut or moved",
        runbook="how-to/run-the-vault.md#files-that-cannot-be-opened",
        alert="VAULT_UNHEALTHY",
    ),
    Condition(
        "VAULT_EPOCH_OLD",
        "the keys of the vault were not rotated for forty days, so copies of destroyed ones may still open",
        "look at its DAG of upkeep, or run `deltaworks privacy maintain NAMESPACE --no-dry-run`",
        runbook="how-to/run-the-vault.md#rotation",
        alert="VAULT_UNHEALTHY",
    ),
    Condition(
        "START_SLOW", "it has been starting for more than ten minutes", "open its driver log", alert="STREAM_UNHEALTHY"
    ),
    Condition(
        "TABLE_SUSPENDED",
        "commits to a table failed; the stream continues without it and keeps its rows",
        "mend the table, then `deltaworks tables resume PIPELINE TABLE`",
        alert="TABLE_SUSPENDED",
        error=ContractError,
    ),
    Condition(
        "NO_PROGRESS",
        "it lives, files wait, and no batch was completed for 15 minutes",
        "open the Spark UI and the driver log",
        alert="STREAM_UNHEALTHY",
    ),
    Condition(
        "BACKLOG_OLD",
        "the oldest file has waited for more than an hour",
        "give it more cores or larger batches",
        alert="BACKLOG_OLD",
    ),
    Condition(
        "SOURCE_EXPIRES",
        "what waits will be deleted by the source soon, or has been",
        "raise its retention",
        alert="DATA_LOSS_NEAR",
    ),
    Condition(
        "INPUT_SILENT",
        "no input for longer than is declared, or than is usual at this hour",
        "ask who sends",
        alert="INPUT_SILENT",
    ),
    Condition(
        "ALERTS_UNDELIVERED",
        "no alert reaches a person: every channel of the environment is a log",
        "set `DELTAWORKS_ALERTS_WEBHOOK`, or declare a channel under `alerts` of the environment; then `deltaworks "
        "alerts check --send`",
        runbook="reference/alerts.md#nobody-hears-of-alerts",
    ),
    Condition(
        "ROWS_QUARANTINED",
        "more of what was read within the last hour is in quarantine than is declared; the reasons are counted",
        "`deltaworks quarantine list PIPELINE`; mend what sends, or the declaration; then replay",
        runbook="reference/alerts.md#too-much-goes-to-quarantine",
        alert="ROWS_QUARANTINED",
    ),
    Condition(
        "GOLD_REFRESH_FAILING",
        "batches land, but a gold table that the stream keeps fresh cannot be built; it is tried again",
        "mend what the condition of the build names",
        runbook="reference/alerts.md#gold-is-stale",
        alert="GOLD_REFRESH_FAILING",
    ),
    Condition(
        "DEAD_LETTERS",
        "messages were delivered too often and lie in a relay's dead-letter queue",
        "`deltaworks files redrive RELAY`; until then their files are not in the log",
        alert="DATA_LOST",
    ),
    Condition(
        "FILES_LOST",
        "objects were never announced, or were gone before they were read; some are named",
        "`deltaworks files show` for one of them",
        runbook="how-to/operate.md#files-that-are-missing",
        alert="DATA_LOST",
    ),
    Condition(
        "RECORDS_LOST",
        "records of a stream expired before this run read them; some ranges are named",
        "rows in quarantine with `records_lost` list all of them",
        runbook="how-to/operate.md#records-that-expired",
        alert="DATA_LOST",
    ),
)
