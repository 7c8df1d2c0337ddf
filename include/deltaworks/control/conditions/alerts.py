"""What people are alerted on. An alert is a row here and a call of `raise_alert` where it is seen."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import AlertCause

#: Of relays and streams, as the health check judges them.
STREAMS: Final = (
    AlertCause(
        "STREAM_UNHEALTHY",
        "critical",
        "reference/alerts.md#a-stream-or-relay-is-unhealthy",
        "a stream or relay does not work",
        next_step="Open its page: the cause there says what to do.",
    ),
    AlertCause(
        "STREAM_HUNG",
        "critical",
        "reference/alerts.md#a-stream-hangs",
        "its heartbeat is old though its task runs",
        next_step="Restart it: it resumes where it was.",
    ),
    AlertCause(
        "RESTARTS_EXHAUSTED",
        "critical",
        "reference/alerts.md#a-stream-hangs",
        "a hung stream was restarted as often as is allowed",
        next_step="Open the driver log of its last runs before it is restarted once more.",
    ),
    AlertCause(
        "BACKLOG_OLD",
        "warning",
        "reference/alerts.md#the-backlog-is-old",
        "what waits has waited for too long",
        next_step="Give it more cores or larger batches before the source forgets what waits.",
    ),
    AlertCause(
        "DATA_LOSS_NEAR",
        "critical",
        "reference/alerts.md#the-source-is-about-to-forget",
        "the source's retention is about to pass",
        next_step="Raise the source's retention now, then see why the stream is behind.",
    ),
    AlertCause(
        "INPUT_SILENT",
        "warning",
        "reference/alerts.md#no-input",
        "no input for longer than is declared or usual",
        next_step="Ask who sends; the stream itself is well.",
    ),
    AlertCause(
        "ROWS_QUARANTINED",
        "warning",
        "reference/alerts.md#too-much-goes-to-quarantine",
        "more of what a stream reads does not fit than is declared",
        next_step="Look at the reasons, mend what sends or the declaration, then replay.",
    ),
    AlertCause(
        "STOPPED_BY_HAND",
        "warning",
        "reference/alerts.md#ended-or-paused-by-hand",
        "a stream ended or is paused without a stop on record",
        next_step="Start it, or put a stop on record if it is meant to stand.",
    ),
    AlertCause(
        "DATA_LOST",
        "critical",
        "reference/alerts.md#data-is-missing",
        "objects, messages or records are gone or undelivered",
        next_step="See what became of one of the files that are named, then reconcile or redrive the relay.",
    ),
    AlertCause(
        "TABLE_SUSPENDED",
        "warning",
        "how-to/operate.md#a-table-is-suspended",
        "a table's commits fail and are held back",
        next_step="Mend the table, then resume it; its rows wait and nothing is lost.",
    ),
    AlertCause(
        "GOLD_REFRESH_FAILING",
        "warning",
        "reference/alerts.md#gold-is-stale",
        "a stream cannot build a gold table that it keeps fresh",
        next_step="Mend what the condition of the build names; the stream tries again by itself.",
    ),
    AlertCause(
        "COLLECTOR_UNHEALTHY",
        "critical",
        "how-to/collect-over-http.md#when-something-is-wrong",
        "a collector is silent, or what it has acknowledged does not leave its disk",
        next_step="Look at its process, its disk and the sink that is named.",
    ),
    AlertCause(
        "VAULT_UNHEALTHY",
        "critical",
        "how-to/run-the-vault.md#when-something-is-wrong",
        "the vault of personal data falls behind, gets no keys, or has files that it cannot open",
        next_step="Look at the last runs of its DAG; what is sealed waits.",
    ),
    AlertCause(
        "EVENTS_LOST",
        "critical",
        "how-to/collect-over-http.md#events-are-lost",
        "events that a collector acknowledged are in no table and not in quarantine",
        next_step="Look for the objects of the ranges in the landing bucket, and reconcile the relay.",
    ),
)

#: Of jobs: maintenance, gold, mutations, reprocess, cleaning.
JOBS: Final = (
    AlertCause(
        "JOB_FAILED",
        "warning",
        "reference/alerts.md#a-job-failed",
        "a task of a job failed after all its tries",
        next_step="Read the last line of the task's log, mend what its condition names, and run it again.",
    ),
    AlertCause(
        "JOB_OVERDUE",
        "warning",
        "reference/alerts.md#a-job-is-overdue",
        "a scheduled job has not succeeded for too long",
        next_step="See whether its DAG is paused, its last run fails or its pool is full; then run it.",
    ),
    AlertCause(
        "MAINTENANCE_OVERLAP",
        "warning",
        "how-to/operate.md#maintenance",
        "two maintenance runs met; one was refused",
        next_step="Let the run that holds the tables end; the next one does what was left.",
    ),
    AlertCause(
        "TABLE_NOT_VACUUMED",
        "warning",
        "reference/alerts.md#a-table-is-not-vacuumed",
        "VACUUM skips a table",
        next_step="Mend the reason that is named, such as a reader that stands still; then VACUUM it.",
    ),
    AlertCause(
        "MAINTENANCE_DRY_RUN",
        "warning",
        "reference/alerts.md#upkeep-only-counts",
        "the first night on a lake that was there before has only counted what it would delete",
        repeat_seconds=24 * 3600,
        next_step="Look at what it counted; the next night deletes it.",
    ),
    AlertCause(
        "MAINTENANCE_LIMIT_EXCEEDED",
        "warning",
        "reference/alerts.md#upkeep-stops-at-its-bound",
        "a night would remove more of a table than it may, and has left that to a person",
        repeat_seconds=24 * 3600,
        next_step="See whether somebody deleted what should be there; else run the command that is named.",
    ),
    AlertCause(
        "DEADLINE_MISSED",
        "warning",
        "reference/alerts.md#a-job-is-overdue",
        "a run did not end by its deadline",
        next_step="Open the run: see what it waits for or why it hangs.",
    ),
    AlertCause(
        "MUTATIONS_BEHIND",
        "warning",
        "how-to/operate.md#mutations",
        "mutation requests have waited for too long",
        next_step="Open the last runs of its DAG; apply what waits.",
    ),
    AlertCause(
        "GOLD_CHECK_FAILED",
        "warning",
        "reference/alerts.md#a-gold-check-failed",
        "a gold build broke its checks",
        next_step="Look at the counts of the check: mend the SQL or its input, then build it again.",
    ),
    AlertCause(
        "GOLD_STALE",
        "warning",
        "reference/alerts.md#gold-is-stale",
        "a gold table is older than it declares",
        next_step="Open the last runs of its DAG, mend why they fail, then build it.",
    ),
    AlertCause(
        "FAILURE_PREDICTED",
        "warning",
        "how-to/train-models.md#a-prediction-warns",
        "a model's newest scores reach its threshold",
        next_step="Look at the rows with the highest scores; it only warns.",
    ),
    AlertCause(
        "VIEW_NOT_ANNOUNCED",
        "warning",
        "reference/alerts.md#a-view-is-not-announced",
        "changed answers are not published",
        next_step="Mend where the view is published to; it is tried again with the next batch.",
    ),
)

#: Of the rules that pipelines declare under `alerts`.
RULES: Final = (
    AlertCause(
        "RULE_FIRING",
        "warning",
        "how-to/write-rules.md#a-rule-fires",
        "a figure is beyond the bounds of a declared rule",
        next_step="Look at the figure on its dashboard, and ask who changed what.",
    ),
    AlertCause(
        "RULE_UNKNOWN",
        "warning",
        "how-to/write-rules.md#a-rule-is-unknown",
        "a rule has no data that say how it is",
        next_step="See why the stream or the table that it reads brings no rows.",
    ),
    AlertCause(
        "RULE_BROKEN",
        "warning",
        "how-to/write-rules.md#a-rule-is-broken",
        "the SQL of a rule fails",
        next_step="Mend the SQL of the rule, then `deltaworks pipelines check`.",
    ),
    AlertCause(
        "RULE_TOO_MANY_SERIES",
        "warning",
        "how-to/write-rules.md#a-rule-is-too-wide",
        "a rule has too many label sets at once",
        next_step="Take a label out of the rule, or limit its label sets.",
    ),
)

#: Of what is handed to others, and of what acts by itself.
OUTBOUND: Final = (
    AlertCause(
        "FEED_STALE",
        "warning",
        "how-to/feed-other-systems.md#a-feed-is-stale",
        "changed rows of a feed are not delivered",
        next_step="See whether its receiver answers, and restart it.",
    ),
    AlertCause(
        "FEED_DEAD_LETTERS",
        "warning",
        "how-to/feed-other-systems.md#dead-letters",
        "a receiver refuses changes of a feed for good",
        next_step="Read why the receiver refuses them, mend it, then replay.",
    ),
    AlertCause(
        "REMEDIATION_STEP",
        "warning",
        "how-to/remediate.md#steps",
        "a remediation has taken a step, or says why it takes none",
        next_step="Nothing, if it is right; else hold the remediation.",
    ),
    AlertCause(
        "REMEDIATION_FAILED",
        "critical",
        "how-to/remediate.md#it-did-not-help",
        "a remediation was taken back, or it is not known what the weights are",
        next_step="See where the weights are now, and set them by hand.",
    ),
    AlertCause(
        "REMEDIATION_HELD",
        "warning",
        "how-to/remediate.md#hold-and-resume",
        "a remediation holds itself, and waits for a person",
        next_step="Look at what it did, then resume it.",
    ),
)

#: Of people who asked to be erased.
ERASURES: Final = (
    AlertCause(
        "ERASURE_DUE",
        "warning",
        "how-to/erase-a-person.md#an-erasure-is-due",
        "an erasure has little time left",
        next_step="Take the rows out now: `deltaworks privacy advance NAMESPACE --window now --no-dry-run`.",
    ),
    AlertCause(
        "ERASURE_OVERDUE",
        "critical",
        "how-to/erase-a-person.md#an-erasure-is-overdue",
        "the deadline of an erasure has passed",
        next_step="Bring it to its end: `deltaworks privacy advance NAMESPACE --window now --no-dry-run`; tell the "
        "person, and note why.",
    ),
    AlertCause(
        "ERASURE_BLOCKED",
        "warning",
        "how-to/erase-a-person.md#an-erasure-is-blocked",
        "an erasure waits for something that somebody has to end",
        next_step="End what it waits for, which is named; it then goes on by itself.",
    ),
    AlertCause(
        "ERASED_ROWS_REAPPEARED",
        "critical",
        "how-to/erase-a-person.md#erased-rows-are-back",
        "rows of people who were erased are in a table again",
        next_step="Take them out again: `deltaworks privacy reapply PIPELINE --no-dry-run`.",
    ),
)

#: Of the watch itself.
MONITORING: Final = (
    AlertCause(
        "HEALTH_SILENT",
        "critical",
        "reference/alerts.md#nobody-watches",
        "the health check has not run for too long",
        next_step="See whether the scheduler is alive, and whether `stream_health` is paused or fails.",
    ),
    AlertCause(
        "CHANNEL_FAILING",
        "warning",
        "reference/alerts.md#a-channel-fails",
        "notifications cannot be delivered; they are kept",
        next_step="Mend its address or key, then `deltaworks alerts check --send`; notifications wait meanwhile.",
    ),
    AlertCause(
        "CONTROL_UNREADABLE",
        "critical",
        "reference/alerts.md#nobody-watches",
        "the control area does not answer",
        next_step="Mend the storage, its keys or the way to it; streams wait for it.",
    ),
)
