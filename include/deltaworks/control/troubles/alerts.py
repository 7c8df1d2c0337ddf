"""What people are alerted on. An alert is a row here and a call of `raise_alert` where it is seen."""

from __future__ import annotations

from typing import Final

from deltaworks.control.troubles.rows import AlertCause

#: Of relays and streams, as the health check judges them.
STREAMS: Final = (
    AlertCause(
        "STREAM_UNHEALTHY", "critical", "alerts.md#a-stream-or-relay-is-unhealthy", "a stream or relay does not work"
    ),
    AlertCause("STREAM_HUNG", "critical", "alerts.md#a-stream-hangs", "its heartbeat is old though its task runs"),
    AlertCause(
        "RESTARTS_EXHAUSTED",
        "critical",
        "alerts.md#a-stream-hangs",
        "a hung stream was restarted as often as is allowed",
    ),
    AlertCause("BACKLOG_OLD", "warning", "alerts.md#the-backlog-is-old", "what waits has waited for too long"),
    AlertCause(
        "LOSS_NEAR", "critical", "alerts.md#the-source-is-about-to-forget", "the source's retention is about to pass"
    ),
    AlertCause("INPUT_SILENT", "warning", "alerts.md#no-input", "no input for longer than is declared or usual"),
    AlertCause(
        "ROWS_QUARANTINED",
        "warning",
        "alerts.md#too-much-goes-to-quarantine",
        "more of what a stream reads does not fit than is declared",
    ),
    AlertCause(
        "STOPPED_BY_HAND",
        "warning",
        "alerts.md#ended-or-paused-by-hand",
        "a stream ended or is paused without a stop on record",
    ),
    AlertCause(
        "DATA_LOST", "critical", "alerts.md#data-is-missing", "objects, messages or records are gone or undelivered"
    ),
    AlertCause(
        "TABLE_SUSPENDED", "warning", "operating.md#a-table-is-suspended", "a table's commits fail and are held back"
    ),
    AlertCause(
        "GOLD_REFRESH_FAILING",
        "warning",
        "alerts.md#gold-is-stale",
        "a stream cannot build a gold table that it keeps fresh",
    ),
    AlertCause(
        "COLLECTOR_UNHEALTHY",
        "critical",
        "collector.md#when-something-is-wrong",
        "a collector is silent, or what it has acknowledged does not leave its disk",
    ),
    AlertCause(
        "VAULT_UNHEALTHY",
        "critical",
        "vault.md#when-something-is-wrong",
        "the vault of personal data falls behind, gets no keys, or has files that it cannot open",
    ),
    AlertCause(
        "EVENTS_LOST",
        "critical",
        "collector.md#events-are-lost",
        "events that a collector acknowledged are in no table and not in quarantine",
    ),
)

#: Of jobs: maintenance, gold, mutations, reprocess, cleaning.
JOBS: Final = (
    AlertCause("JOB_FAILED", "warning", "alerts.md#a-job-failed", "a task of a job failed after all its tries"),
    AlertCause(
        "JOB_OVERDUE", "warning", "alerts.md#a-job-is-overdue", "a scheduled job has not succeeded for too long"
    ),
    AlertCause(
        "MAINTENANCE_OVERLAP", "warning", "operating.md#maintenance", "two maintenance runs met; one was refused"
    ),
    AlertCause("TABLE_NOT_VACUUMED", "warning", "alerts.md#a-table-is-not-vacuumed", "VACUUM skips a table"),
    AlertCause(
        "UPKEEP_ONLY_COUNTS",
        "warning",
        "alerts.md#upkeep-only-counts",
        "the first night on a lake that was there before has only counted what it would delete",
        repeat_seconds=24 * 3600,
    ),
    AlertCause(
        "UPKEEP_OVER_BOUND",
        "warning",
        "alerts.md#upkeep-stops-at-its-bound",
        "a night would remove more of a table than it may, and has left that to a person",
        repeat_seconds=24 * 3600,
    ),
    AlertCause("DEADLINE_MISSED", "warning", "alerts.md#a-job-is-overdue", "a run did not end by its deadline"),
    AlertCause("MUTATIONS_BEHIND", "warning", "operating.md#mutations", "mutation requests have waited for too long"),
    AlertCause("GOLD_CHECK_FAILED", "warning", "alerts.md#a-gold-check-failed", "a gold build broke its checks"),
    AlertCause("GOLD_STALE", "warning", "alerts.md#gold-is-stale", "a gold table is older than it declares"),
    AlertCause(
        "FAILURE_PREDICTED", "warning", "models.md#a-prediction-warns", "a model's newest scores reach its threshold"
    ),
    AlertCause(
        "VIEW_NOT_ANNOUNCED", "warning", "alerts.md#a-view-is-not-announced", "changed answers are not published"
    ),
)

#: Of the rules that pipelines declare under `alerts`.
RULES: Final = (
    AlertCause("RULE_FIRING", "warning", "rules.md#a-rule-fires", "a figure is beyond the bounds of a declared rule"),
    AlertCause("RULE_UNKNOWN", "warning", "rules.md#a-rule-is-unknown", "a rule has no data that say how it is"),
    AlertCause("RULE_BROKEN", "warning", "rules.md#a-rule-is-broken", "the SQL of a rule fails"),
    AlertCause("RULE_TOO_WIDE", "warning", "rules.md#a-rule-is-too-wide", "a rule has too many label sets at once"),
)

#: Of what is handed to others, and of what acts by itself.
OUTWARD: Final = (
    AlertCause("FEED_STALE", "warning", "feeds.md#a-feed-is-stale", "changed rows of a feed are not delivered"),
    AlertCause(
        "FEED_DEAD_LETTERS", "warning", "feeds.md#dead-letters", "a receiver refuses changes of a feed for good"
    ),
    AlertCause(
        "REMEDIATION_STEP",
        "warning",
        "remediation.md#steps",
        "a remediation has taken a step, or says why it takes none",
    ),
    AlertCause(
        "REMEDIATION_FAILED",
        "critical",
        "remediation.md#it-did-not-help",
        "a remediation was taken back, or it is not known what the weights are",
    ),
    AlertCause(
        "REMEDIATION_HELD",
        "warning",
        "remediation.md#hold-and-resume",
        "a remediation holds itself, and waits for a person",
    ),
)

#: Of people who asked to be erased.
ERASURES: Final = (
    AlertCause("ERASURE_DUE", "warning", "erasure.md#an-erasure-is-due", "an erasure has little time left"),
    AlertCause(
        "ERASURE_OVERDUE", "critical", "erasure.md#an-erasure-is-overdue", "the deadline of an erasure has passed"
    ),
    AlertCause(
        "ERASURE_BLOCKED",
        "warning",
        "erasure.md#an-erasure-is-blocked",
        "an erasure waits for something that somebody has to end",
    ),
    AlertCause(
        "ERASED_ROWS_BACK",
        "critical",
        "erasure.md#erased-rows-are-back",
        "rows of people who were erased are in a table again",
    ),
)

#: Of the watch itself.
WATCH: Final = (
    AlertCause("HEALTH_SILENT", "critical", "alerts.md#nobody-watches", "the health check has not run for too long"),
    AlertCause("CHANNEL_FAILING", "warning", "alerts.md#a-channel-fails", "notices cannot be delivered; they are kept"),
    AlertCause("CONTROL_UNREADABLE", "critical", "alerts.md#nobody-watches", "the control area does not answer"),
)
