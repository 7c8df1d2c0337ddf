"""Conditions of running jobs: concurrent writers, servers, fencing and unexpected errors."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition, conditions_of
from deltaworks.errors import ConcurrencyError, ContractError, DeltaworksError, FencedError, TransientError

RUNTIME: Final = (
    *conditions_of(
        ConcurrencyError,
        Condition(
            "RULE_EVALUATED_ELSEWHERE",
            "another process evaluated a rule",
            "nothing: evaluation continues from its state",
        ),
        Condition(
            "ALERT_CONTENDED",
            "other processes kept changing an alert",
            "nothing: it is reported at the next raise",
        ),
        Condition(
            "LEASE_HELD",
            "the named other process runs this stream or relay",
            "nothing if intended; otherwise `deltaworks stop NAME`",
        ),
        Condition("TABLE_HELD", "a prepared replay has rows for a held table", "replay again once it is released"),
        Condition(
            "COMMIT_CONTENDED",
            "every commit attempt conflicted with another writer",
            "wait until the other job ends, then run again",
        ),
        Condition("DELTA_CONFLICT", "another writer changed this job's data", "run again; Airflow does"),
        Condition(
            "TURN_NOT_GRANTED",
            "a table's write turn was not granted in time",
            "run again after the long batch or the other turn",
        ),
        Condition(
            "GOLD_OVERTAKEN",
            "another build or refresh committed first",
            "nothing: the next attempt plans again",
        ),
        Condition(
            "REFERENCE_CONTENDED",
            "runs with different reference files replace each other",
            "deploy one file version everywhere, then build again",
        ),
        Condition(
            "GOLD_SWAP_OVERTAKEN",
            "other builds kept committing before a shadow caught up",
            "pause the gold DAG and run it again: it continues with the shadow",
        ),
        Condition(
            "MAINTENANCE_RUNNING",
            "the named run maintains this pipeline's tables",
            "nothing: the next run does the rest",
        ),
        Condition(
            "MAINTENANCE_LOCK_LOST",
            "another maintenance run took over, or the storage did not answer",
            "nothing: the next run continues",
        ),
        Condition(
            "TABLE_FILES_HELD",
            "the named job deletes or restores files of the table",
            "run again after it; VACUUM skips the table",
        ),
        Condition(
            "MUTATION_LEASE_LOST",
            "another mutation run took over, or the storage did not answer",
            "nothing: a run completes the batch",
        ),
        Condition(
            "TURN_LOST",
            "a job lost its write turn: it was silent or too slow",
            "run again; do less work per turn",
        ),
        Condition(
            "TABLE_NOT_CREATED", "a table could neither be created nor opened", "check the storage, then run again"
        ),
        Condition("SPEC_RECORD_CONTENDED", "two processes recorded the current spec at the same time", "run again"),
    ),
    *conditions_of(
        TransientError,
        Condition(
            "TASKS_CRASH",
            "tasks crash outside of payload parsing, also one at a time",
            "read the executors' tracebacks: the source may fail",
            runbook="how-to/operate.md#a-worker-crashes",
        ),
        Condition(
            "ENRICHMENT_REPLACED",
            "an enrichment database was replaced during a batch",
            "nothing: the batch is retried",
        ),
        Condition(
            "QUEUE_NOT_DRAINED",
            "another query relays this queue and has not emptied it",
            "start again later, or use a separate queue",
        ),
        Condition(
            "CHANNEL_FAILED",
            "an alert channel did not accept a notification, which is kept",
            "`deltaworks alerts check`",
            runbook="reference/alerts.md#a-channel-fails",
        ),
        Condition(
            "CONTROL_UNREADABLE",
            "the control storage does not answer",
            "fix the storage, its credentials or the network",
        ),
        Condition(
            "HEALTH_SILENT",
            "the health check has not run for too long",
            "check that the scheduler is running",
            runbook="reference/alerts.md#the-health-check-is-silent",
        ),
        Condition(
            "STORAGE_REFUSED", "the object store returned an error", "check endpoint, credentials and permissions"
        ),
        Condition("STORAGE_UNREACHABLE", "a server did not answer", "wait, or restart it; jobs continue"),
        Condition(
            "MUTATIONS_BEHIND",
            "requests of the named pipelines have waited longer than `alert_after_minutes`",
            "check that `<pipeline>__mutations` runs, and read its last log",
            alert="MUTATIONS_BEHIND",
        ),
        Condition(
            "RELAY_OUTAGE",
            "a relay could not reach its queue or log within its retry time",
            "restart the queue or the storage; no data is lost",
        ),
        Condition(
            "KINESIS_UNREACHABLE",
            "Kinesis throttled or failed beyond the retry time",
            "wait; if throttled, check for other readers of the shard",
        ),
        Condition(
            "KINESIS_CONSUMER_NOT_READY",
            "a registered consumer is not active after two minutes",
            "run again; check the stream's consumers in AWS",
        ),
        Condition(
            "KINESIS_CONSUMER_REMOVED",
            "a registered consumer was removed while in use",
            "the next start registers it again; find out who deregisters it",
        ),
        Condition(
            "KINESIS_CONSUMER_BUSY",
            "cause of `KINESIS_UNREACHABLE`: the same consumer keeps subscribing to a shard elsewhere",
            "use a separate `consumerName` per query",
        ),
        Condition(
            "KINESIS_ANSWER_UNREADABLE",
            "a Kinesis response is truncated or not JSON",
            "nothing: it is retried; if it persists, check proxies",
        ),
        Condition(
            "OFFSET_LOG_UNREADABLE",
            "Spark's offset log lacks the end of a batch; nothing was committed",
            "nothing; if it recurs, `deltaworks checkpoint repair`",
        ),
        Condition(
            "SPARK_UNAVAILABLE",
            "a commit or clustered table needs Spark, which this process lacks",
            "none: the stream does it",
        ),
        Condition(
            "CHECKPOINT_SUPERSEDED",
            "a batch was committed with another slice than Spark's checkpoint has",
            "nothing: the next run continues with a new checkpoint",
        ),
        Condition(
            "BATCH_STALLED",
            "a batch exceeded `stall_seconds`; the job ended itself",
            "find the place in the driver log; the next run resumes",
        ),
        Condition(
            "PYTHON_WORKER_TIMEOUT",
            "a Python worker did not connect to Spark within ten seconds",
            "nothing: it is retried; if it persists, share a driver (`stream_group`)",
        ),
        Condition(
            "SPARK_APPLICATION_ENDED",
            "a stream group's Spark application ended",
            "nothing: the next run resumes each; the driver log has the cause",
        ),
        Condition("QUERY_ENDED", "a query ended without an error", "the next run restarts it"),
        Condition(
            "LIVE_INPUT_MISSING", "a live table's bronze table was not created in time", "check that the stream runs"
        ),
        Condition(
            "ANNOUNCEMENT_REFUSED",
            "a topic rejected a view's result; the next refresh publishes it",
            "check topic and credentials below `alerts` of the environment",
        ),
        Condition(
            "STREAMS_UNHEALTHY",
            "the health DAG found an unhealthy stream or relay",
            "follow its next step",
            runbook="how-to/operate.md",
        ),
        Condition(
            "PROCESS_FAILED",
            "a relay's process ended without an error line",
            "read the preceding lines of the task log",
        ),
        Condition(
            "STREAM_STILL_RUNNING",
            "a stream did not end within the wait",
            "a long batch must end first; check the driver log",
        ),
    ),
    *conditions_of(
        FencedError,
        Condition("OWNER_FENCED", "a successor raised the owner epoch in a table", "none: the successor continues"),
        Condition(
            "CHECKPOINT_IN_USE",
            "another driver has written the next file of the query's checkpoint",
            "none: the other driver continues",
        ),
        Condition(
            "LEASE_LOST",
            "a relay or stream lost its lease, or its storage did not answer",
            "none, or check the storage",
        ),
    ),
    *conditions_of(
        DeltaworksError,
        Condition(
            "JOB_FAILED",
            "a job failed unexpectedly",
            "read the traceback above the last line",
            default_retryable=True,
        ),
        Condition(
            "RELAY_FAILED",
            "a relay failed unexpectedly",
            "read the traceback in its log",
            default_retryable=True,
        ),
        Condition(
            "RULES_FAILED",
            "the process that evaluates rules failed unexpectedly",
            "read the traceback in its log; missed minutes are evaluated later",
            default_retryable=True,
        ),
        Condition(
            "STREAM_FAILED",
            "a stream failed unexpectedly, as its heartbeat reports",
            "read the driver log",
            default_retryable=True,
        ),
    ),
    Condition(
        "STREAM_PARKED",
        "a stream group's pipeline failed too often; the others continue",
        "fix its last failure, then `deltaworks start PIPELINE`",
        alert="STREAM_UNHEALTHY",
        error=ContractError,
        runbook="how-to/operate.md#several-streams-in-one-driver",
    ),
)
