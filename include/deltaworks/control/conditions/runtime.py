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
            "another process evaluated a rule meanwhile",
            "none: its state is read, and evaluation continues from there",
        ),
        Condition(
            "ALERT_CONTENDED",
            "other processes kept changing an alert while it was raised",
            "nothing: it is reported when it is raised again",
        ),
        Condition(
            "LEASE_HELD",
            "another process runs this stream or relay; it is named",
            "nothing if intended; otherwise `deltaworks stop NAME`",
        ),
        Condition("TABLE_HELD", "a prepared replay has rows for a held table", "replay again once it is released"),
        Condition(
            "SCHEMA_CONTENDED",
            "others created a hundred versions of a schema at the same time",
            "use a separate `inferredSchemaLocation` per source",
        ),
        Condition(
            "COMMIT_CONTENDED",
            "every commit attempt conflicted with another writer",
            "wait until the other job ends, then run again",
        ),
        Condition(
            "DELTA_CONFLICT", "another writer changed the data this job read or rewrote", "run again; Airflow does"
        ),
        Condition(
            "TURN_NOT_GRANTED",
            "the write turn of a table was not granted in time",
            "run again once the long batch or the other job's turn has ended",
        ),
        Condition(
            "GOLD_OVERTAKEN",
            "another build or refresh of the gold table committed since this build was planned",
            "nothing: the next attempt plans again",
        ),
        Condition(
            "REFERENCE_CONTENDED",
            "runs with different files of a reference table keep replacing it",
            "deploy one version of the file to all of them, then run the build again",
        ),
        Condition(
            "GOLD_SWAP_OVERTAKEN",
            "other builds kept committing before a shadow caught up",
            "pause the gold DAG and run it again: it continues with the shadow",
        ),
        Condition(
            "MAINTENANCE_RUNNING",
            "another run maintains the tables of this pipeline; it is named",
            "nothing: the next run does the rest",
        ),
        Condition(
            "MAINTENANCE_LOCK_LOST",
            "another maintenance run took over, or the storage did not answer for a while",
            "nothing: completed work is kept, the next run continues",
        ),
        Condition(
            "TABLE_FILES_HELD",
            "another job deletes or restores files of the table; the holder is named",
            "wait until it ends, then run again; VACUUM skips the table",
        ),
        Condition(
            "MUTATION_LEASE_LOST",
            "another mutation run took over, or the storage did not answer for a while",
            "nothing: the other run or the next completes the batch",
        ),
        Condition(
            "TURN_LOST",
            "a job lost its write turn: it was silent or took too long",
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
            "tasks of a stream crash outside of payload parsing, also when run one at a time",
            "read the tracebacks of the executors: the source itself may fail",
            runbook="how-to/operate.md#a-task-that-dies",
        ),
        Condition(
            "ENRICHMENT_REPLACED",
            "an enrichment database was replaced while a batch used its former version",
            "nothing: the batch is read again with the new one",
        ),
        Condition(
            "QUEUE_NOT_DRAINED",
            "another query relays the same queue and has not emptied it yet",
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
            "the control storage does not answer the dead man's switch",
            "fix the storage, its credentials or the network",
        ),
        Condition(
            "HEALTH_SILENT",
            "the health check has not run for too long",
            "check that the scheduler is running",
            runbook="reference/alerts.md#nobody-watches",
        ),
        Condition(
            "SCHEMA_COLUMNS_ADDED",
            "new fields were found and added to the next version of the schema",
            "restart the query from `.load()`: it reads the batch again, with them",
        ),
        Condition(
            "SCHEMA_NOTHING_TO_SAMPLE",
            "no object with events has been announced, so no columns can be inferred",
            "start it later, raise `schemaSampleFiles`, or pass a schema",
        ),
        Condition(
            "STORAGE_REFUSED", "the object store returned an error", "check endpoint, credentials and permissions"
        ),
        Condition("STORAGE_UNREACHABLE", "a server did not answer", "wait, or restart it; jobs continue by themselves"),
        Condition(
            "MUTATIONS_BEHIND",
            "requests have waited for longer than `alert_after_minutes`; the pipelines are named",
            "check that `mutations__<pipeline>` runs, and read its last log",
            alert="MUTATIONS_BEHIND",
        ),
        Condition(
            "RELAY_OUTAGE",
            "a relay could not reach its queue or its log for longer than its retry time",
            "restart the queue or the storage; no data is lost",
        ),
        Condition(
            "KINESIS_UNREACHABLE",
            "Kinesis throttled or failed for longer than the retry time",
            "wait; if it throttles, check for other readers of the shard",
        ),
        Condition(
            "KINESIS_CONSUMER_NOT_READY",
            "a registered consumer is not active after two minutes",
            "run again; check the stream's consumers in AWS",
        ),
        Condition(
            "KINESIS_CONSUMER_REMOVED",
            "a registered consumer was deregistered while it was used",
            "the next start registers it again; find out who deregisters it",
        ),
        Condition(
            "KINESIS_CONSUMER_BUSY",
            "cause of `KINESIS_UNREACHABLE`: the same consumer keeps subscribing to a shard elsewhere",
            "use a separate `consumerName` per query",
        ),
        Condition(
            "KINESIS_ANSWER_UNREADABLE",
            "a response of Kinesis is truncated or not JSON",
            "nothing: it is requested again; if it persists, check proxies of the endpoint",
        ),
        Condition(
            "OFFSET_LOG_UNREADABLE",
            "Spark's offset log lacks the end of a batch; nothing was committed",
            "nothing; if it recurs, `deltaworks checkpoint repair`",
        ),
        Condition(
            "SPARK_UNAVAILABLE",
            "a commit or a clustered table needs Spark, which does not run in this process",
            "none: the stream does it",
        ),
        Condition(
            "CHECKPOINT_SUPERSEDED",
            "a batch was committed with another slice than Spark's checkpoint has now (the checkpoint was replaced "
            "or lost files)",
            "nothing: the next run continues after it with a new checkpoint",
        ),
        Condition(
            "BATCH_STALLED",
            "a batch ran longer than `stall_seconds`; the job ended itself",
            "find the place in the driver log; the next run resumes the batch",
        ),
        Condition(
            "PYTHON_WORKER_TIMEOUT",
            "a Python worker did not connect to Spark within ten seconds, for example when many streams start on few "
            "cores",
            "nothing: the next run retries; if it persists, let small streams share a driver (`stream_group`), or "
            "read the driver log",
        ),
        Condition(
            "SPARK_APPLICATION_ENDED",
            "the Spark application that a stream group shares has ended, and with it all members",
            "nothing: the next run resumes each; read the driver log for the cause",
        ),
        Condition("QUERY_ENDED", "a query ended without an error", "the next run restarts it"),
        Condition(
            "LIVE_INPUT_MISSING", "a live table's bronze table was not created in time", "check that the stream runs"
        ),
        Condition(
            "ANNOUNCEMENT_REFUSED",
            "a topic rejected the result of a view; the next successful refresh publishes it",
            "check the topic and credentials below `alerts` of the environment",
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
            "a relay or stream lost its lease to a successor, or its storage did not answer",
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
            "read the traceback in its log; missed minutes are evaluated once it runs again",
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
        "a pipeline of a stream group failed too often soon after its start; the others continue without it",
        "fix its last failure, then `deltaworks start PIPELINE`",
        alert="STREAM_UNHEALTHY",
        error=ContractError,
        runbook="how-to/operate.md#several-streams-in-one-driver",
    ),
)
