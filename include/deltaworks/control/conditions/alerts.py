"""Alerts. To add one, add a row here and call `raise_alert` where it is detected."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import AlertCause

#: Alerts on relays and streams, raised by the health check.
STREAMS: Final = (
    AlertCause(
        "STREAM_UNHEALTHY",
        "critical",
        "reference/alerts.md#a-stream-or-relay-is-unhealthy",
        "a stream or relay does not work",
        next_step="Open its page: the cause there names the next step.",
    ),
    AlertCause(
        "STREAM_HUNG",
        "critical",
        "reference/alerts.md#a-stream-hangs",
        "the heartbeat is old although the task is running",
        next_step="Restart it: it resumes where it was.",
    ),
    AlertCause(
        "RESTARTS_EXHAUSTED",
        "critical",
        "reference/alerts.md#a-stream-hangs",
        "a hung stream reached its limit of restarts",
        next_step="Read the driver log of its last runs before the next restart.",
    ),
    AlertCause(
        "BACKLOG_OLD",
        "warning",
        "reference/alerts.md#the-backlog-is-old",
        "the oldest unread input is too old",
        next_step="Add cores or use larger batches before the source deletes unread input.",
    ),
    AlertCause(
        "DATA_LOSS_NEAR",
        "critical",
        "reference/alerts.md#the-source-will-delete-unread-input",
        "the source will soon delete unread input",
        next_step="Raise the source's retention now, then find out why the stream is behind.",
    ),
    AlertCause(
        "INPUT_SILENT",
        "warning",
        "reference/alerts.md#no-input",
        "no input for longer than declared or usual",
        next_step="Ask the producer; the stream itself is healthy.",
    ),
    AlertCause(
        "ROWS_QUARANTINED",
        "warning",
        "reference/alerts.md#too-much-goes-to-quarantine",
        "a stream quarantines more events than its limit allows",
        next_step="Read the reasons, fix the producer or the spec, then replay.",
    ),
    AlertCause(
        "STOPPED_BY_HAND",
        "warning",
        "reference/alerts.md#ended-or-paused-by-hand",
        "a stream ended or is paused without a stop request",
        next_step="Start it, or set a stop request if it is intended.",
    ),
    AlertCause(
        "DATA_LOST",
        "critical",
        "reference/alerts.md#data-is-missing",
        "objects, messages or records are missing or undelivered",
        next_step="Check one of the named files, then reconcile or redrive the relay.",
    ),
    AlertCause(
        "TABLE_SUSPENDED",
        "warning",
        "how-to/operate.md#a-table-is-suspended",
        "commits to a table fail and wait",
        next_step="Fix the table, then resume it; its rows wait and no data is lost.",
    ),
    AlertCause(
        "GOLD_REFRESH_FAILING",
        "warning",
        "reference/alerts.md#gold-is-stale",
        "a stream cannot build a gold table that it refreshes",
        next_step="Fix the named condition; the stream retries by itself.",
    ),
    AlertCause(
        "COLLECTOR_UNHEALTHY",
        "critical",
        "how-to/collect-over-http.md#fix-an-unhealthy-collector",
        "a collector is silent, or acknowledged events stay in its spool",
        next_step="Check its process, its disk and the named sink.",
    ),
    AlertCause(
        "VAULT_UNHEALTHY",
        "critical",
        "how-to/run-the-vault.md#fix-an-unhealthy-vault",
        "the vault is behind, gets no keys, or has files it cannot decrypt",
        next_step="Check the last runs of its DAG; encrypted files wait.",
    ),
    AlertCause(
        "EVENTS_LOST",
        "critical",
        "how-to/collect-over-http.md#events-are-lost",
        "events that a collector acknowledged are neither in a table nor in quarantine",
        next_step="Search the landing bucket for the objects of the ranges, and reconcile the relay.",
    ),
)

#: Alerts on jobs: maintenance, gold, mutations, reprocess, cleaning.
JOBS: Final = (
    AlertCause(
        "JOB_FAILED",
        "warning",
        "reference/alerts.md#a-job-failed",
        "a task failed after all its retries",
        next_step="Read the last line of the task's log, fix the named condition, and run it again.",
    ),
    AlertCause(
        "JOB_OVERDUE",
        "warning",
        "reference/alerts.md#a-job-is-overdue",
        "a scheduled job has not succeeded for too long",
        next_step="Check whether its DAG is paused, its last run failed or its pool is full; then run it.",
    ),
    AlertCause(
        "MAINTENANCE_OVERLAP",
        "warning",
        "how-to/operate.md#maintenance",
        "two maintenance runs overlapped; one was rejected",
        next_step="Let the running one end; the next run does the rest.",
    ),
    AlertCause(
        "TABLE_NOT_VACUUMED",
        "warning",
        "reference/alerts.md#a-table-is-not-vacuumed",
        "VACUUM skips a table",
        next_step="Fix the named reason, such as a stopped reader; then run VACUUM.",
    ),
    AlertCause(
        "MAINTENANCE_DRY_RUN",
        "warning",
        "reference/alerts.md#maintenance-only-counts",
        "the first maintenance run on an existing lake only counted the files it would delete",
        repeat_seconds=24 * 3600,
        next_step="Check the counts; the next run deletes the files.",
    ),
    AlertCause(
        "MAINTENANCE_LIMIT_EXCEEDED",
        "warning",
        "reference/alerts.md#maintenance-exceeds-its-limit",
        "maintenance would delete more of a table than its limit, and left it to a person",
        repeat_seconds=24 * 3600,
        next_step="Check whether files were deleted by mistake; otherwise run the named command.",
    ),
    AlertCause(
        "DEADLINE_MISSED",
        "warning",
        "reference/alerts.md#a-job-is-overdue",
        "a run did not end by its deadline",
        next_step="Open the run to see why it waits or hangs.",
    ),
    AlertCause(
        "MUTATIONS_BEHIND",
        "warning",
        "how-to/operate.md#mutations",
        "mutation requests have waited for too long",
        next_step="Open the last runs of its DAG; apply the pending requests.",
    ),
    AlertCause(
        "GOLD_CHECK_FAILED",
        "warning",
        "reference/alerts.md#a-gold-check-failed",
        "a gold build failed its checks",
        next_step="Read the counts of the check, fix the SQL or its input, then build again.",
    ),
    AlertCause(
        "GOLD_STALE",
        "warning",
        "reference/alerts.md#gold-is-stale",
        "a gold table is older than its declared limit",
        next_step="Open the last runs of its DAG, fix their failure, then build it.",
    ),
    AlertCause(
        "FAILURE_PREDICTED",
        "warning",
        "how-to/train-models.md#a-prediction-warns",
        "the newest scores of a model reach its threshold",
        next_step="Check the rows with the highest scores; no action is taken automatically.",
    ),
    AlertCause(
        "VIEW_NOT_ANNOUNCED",
        "warning",
        "reference/alerts.md#a-view-is-not-announced",
        "changed view results are not published",
        next_step="Fix the publishing target; the next batch retries.",
    ),
)

#: Alerts of the rules that pipelines declare.
RULES: Final = (
    AlertCause(
        "RULE_FIRING",
        "warning",
        "how-to/write-rules.md#a-rule-fires",
        "a value is beyond the bounds of a rule",
        next_step="Check the value on its dashboard, and ask who changed what.",
    ),
    AlertCause(
        "RULE_UNKNOWN",
        "warning",
        "how-to/write-rules.md#a-rule-is-unknown",
        "a rule cannot be evaluated: its input has no rows",
        next_step="Find out why the stream or table it reads has no new rows.",
    ),
    AlertCause(
        "RULE_BROKEN",
        "warning",
        "how-to/write-rules.md#a-rule-is-broken",
        "the SQL of a rule fails",
        next_step="Fix the SQL of the rule, then run `deltaworks pipelines check`.",
    ),
    AlertCause(
        "RULE_TOO_MANY_SERIES",
        "warning",
        "how-to/write-rules.md#a-rule-is-too-wide",
        "a rule has too many label sets",
        next_step="Remove a label from the rule, or limit its label sets.",
    ),
)

#: Alerts on feeds and remediations.
OUTBOUND: Final = (
    AlertCause(
        "FEED_STALE",
        "warning",
        "how-to/feed-other-systems.md#a-feed-is-stale",
        "changes of a feed are not delivered",
        next_step="Check whether its receiver answers, and restart it.",
    ),
    AlertCause(
        "FEED_DEAD_LETTERS",
        "warning",
        "how-to/feed-other-systems.md#dead-letters",
        "a receiver permanently rejects changes of a feed",
        next_step="Read the reasons, fix the receiver, then replay.",
    ),
    AlertCause(
        "REMEDIATION_STEP",
        "warning",
        "how-to/remediate.md#steps",
        "a remediation acted, or declined to act",
        next_step="Nothing if the action is right; otherwise hold the remediation.",
    ),
    AlertCause(
        "REMEDIATION_FAILED",
        "critical",
        "how-to/remediate.md#it-did-not-help",
        "a remediation was rolled back, or its weights are unknown",
        next_step="Check the current weights, and set them manually.",
    ),
    AlertCause(
        "REMEDIATION_HELD",
        "warning",
        "how-to/remediate.md#hold-and-resume",
        "a remediation has paused itself and waits for a person",
        next_step="Check its last actions, then resume it.",
    ),
)

#: Alerts on erasures.
ERASURES: Final = (
    AlertCause(
        "ERASURE_DUE",
        "warning",
        "how-to/erase-a-person.md#an-erasure-is-due",
        "an erasure has little time left",
        next_step="Delete the rows now: `deltaworks privacy advance NAMESPACE --window now --no-dry-run`.",
    ),
    AlertCause(
        "ERASURE_OVERDUE",
        "critical",
        "how-to/erase-a-person.md#an-erasure-is-overdue",
        "the deadline of an erasure has passed",
        next_step="Complete it: `deltaworks privacy advance NAMESPACE --window now --no-dry-run`. Inform the "
        "person, and record the reason.",
    ),
    AlertCause(
        "ERASURE_BLOCKED",
        "warning",
        "how-to/erase-a-person.md#an-erasure-is-blocked",
        "an erasure waits for an action of a person",
        next_step="Complete the named action; the erasure then continues by itself.",
    ),
    AlertCause(
        "ERASED_ROWS_REAPPEARED",
        "critical",
        "how-to/erase-a-person.md#erased-rows-reappear",
        "a table contains rows of erased people again",
        next_step="Delete them again: `deltaworks privacy reapply PIPELINE --no-dry-run`.",
    ),
)

#: Alerts on monitoring itself.
MONITORING: Final = (
    AlertCause(
        "HEALTH_SILENT",
        "critical",
        "reference/alerts.md#the-health-check-is-silent",
        "the health check has not run for too long",
        next_step="Check that the scheduler runs, and that `deltaworks__health` is neither paused nor failing.",
    ),
    AlertCause(
        "CHANNEL_FAILING",
        "warning",
        "reference/alerts.md#a-channel-fails",
        "notifications cannot be delivered and are kept",
        next_step="Fix its address or key, then run `deltaworks alerts check --send`; pending notifications are kept.",
    ),
    AlertCause(
        "CONTROL_UNREADABLE",
        "critical",
        "reference/alerts.md#the-health-check-is-silent",
        "the control storage does not answer",
        next_step="Fix the storage, its credentials or the network; streams wait for it.",
    ),
)
