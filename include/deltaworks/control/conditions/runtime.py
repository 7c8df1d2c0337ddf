"""Conditions of running jobs: other writers, servers, successors, and what nobody foresaw."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition, conditions_of
from deltaworks.errors import ConcurrencyError, ContractError, DeltaworksError, FencedError, TransientError

RUNTIME: Final = (
    *conditions_of(
        ConcurrencyError,
        Condition(
            "RULE_EVALUATED_ELSEWHERE",
            "a rule was judged by another process meanwhile",
            "none: what that one wrote is read, and judged on from",
        ),
        Condition(
            "ALERT_CONTENDED",
            "one alert was changed by others again and again while it was raised",
            "nothing: the next time it is raised it is reported",
        ),
        Condition(
            "LEASE_HELD",
            "another process runs this stream or relay; it is named",
            "nothing if that is meant; else `deltaworks stop NAME`",
        ),
        Condition("TABLE_HELD", "a prepared replay has rows for a table that is held", "replay again once it is free"),
        Condition(
            "SCHEMA_CONTENDED",
            "a hundred versions of a schema were made by others at once",
            "give each source an `inferredSchemaLocation` of its own",
        ),
        Condition(
            "COMMIT_CONTENDED", "every attempt to commit met another writer", "let the other job end, then run again"
        ),
        Condition("DELTA_CONFLICT", "another writer changed what this job read or rewrote", "run again; Airflow does"),
        Condition(
            "TURN_NOT_GRANTED",
            "the write turn of a table was not granted in time",
            "run again once the long batch or the other job's turn is over",
        ),
        Condition(
            "GOLD_OVERTAKEN",
            "another build or a refresh of the gold table landed since a build was planned, which therefore did not",
            "nothing: the next try plans again",
        ),
        Condition(
            "REFERENCE_CONTENDED",
            "runs that see different files of a reference table replaced it in turns",
            "deploy one version of the file to all of them, then run the build again",
        ),
        Condition(
            "GOLD_SWAP_OVERTAKEN",
            "builds were ahead of a shadow each time it had caught up",
            "pause the gold DAG and run it again: it continues with the shadow",
        ),
        Condition(
            "MAINTENANCE_RUNNING",
            "another run keeps the tables of this pipeline; it is named",
            "nothing: what it leaves is found by the next run",
        ),
        Condition(
            "MAINTENANCE_LOCK_LOST",
            "a maintenance run was overtaken by another, or the storage did not answer for a while",
            "nothing: what was done stays done, the next run continues",
        ),
        Condition(
            "TABLE_FILES_HELD",
            "files of a table are being deleted while they were to be put back, or the other way round; the holder is "
            "named",
            "let that end, then run again; VACUUM skips the table",
        ),
        Condition(
            "MUTATION_LEASE_LOST",
            "a mutation run was overtaken by another, or the storage did not answer for a while",
            "nothing: the batch is completed by the other run or the next",
        ),
        Condition(
            "TURN_LOST",
            "a job lost its write turn: silent for too long, or it lasted too long",
            "run again; do less in one turn",
        ),
        Condition(
            "TABLE_NOT_CREATED", "a table could neither be created nor opened", "check the storage, then run again"
        ),
        Condition("SPEC_RECORD_CONTENDED", "two processes noted the spec they run with at once", "run again"),
    ),
    *conditions_of(
        TransientError,
        Condition(
            "TASKS_CRASH",
            "tasks of a stream die where no payload is open that could be to blame, also one task at a time",
            "see the tracebacks of the executors: the source itself may fail while it reads",
            runbook="how-to/operate.md#a-task-that-dies",
        ),
        Condition(
            "ENRICHMENT_REPLACED",
            "a database that events are enriched from was replaced while a batch was read with its former version",
            "nothing: the batch is read again, whole, with the new one",
        ),
        Condition(
            "QUEUE_NOT_DRAINED",
            "another query relays the same queue and has not emptied it yet",
            "start again later, or give the query a queue of its own",
        ),
        Condition(
            "CHANNEL_FAILED",
            "a channel of alerts did not take a notification, which is kept",
            "`deltaworks alerts check`",
            runbook="reference/alerts.md#a-channel-fails",
        ),
        Condition(
            "CONTROL_UNREADABLE",
            "the dead-man check finds that the control area does not answer",
            "mend the storage, its keys or the way to it",
        ),
        Condition(
            "HEALTH_SILENT",
            "the health check has not run for too long",
            "look whether the scheduler is alive",
            runbook="reference/alerts.md#nobody-watches",
        ),
        Condition(
            "SCHEMA_COLUMNS_ADDED",
            "fields no column takes; the next version of the schema has them",
            "start the query again from `.load()` on: it reads the batch again, with them",
        ),
        Condition(
            "SCHEMA_NOTHING_TO_SAMPLE",
            "nothing that holds an event has been announced, so no columns can be found",
            "start it again later, raise `schemaSampleFiles`, or give a schema",
        ),
        Condition("STORAGE_REFUSED", "the object store answered with an error", "check endpoint, keys and permissions"),
        Condition(
            "STORAGE_UNREACHABLE", "a server did not answer", "wait, or bring it back; jobs continue by themselves"
        ),
        Condition(
            "MUTATIONS_BEHIND",
            "requests have waited for longer than `alert_after_minutes`; the pipelines are named",
            "see whether `mutations__<pipeline>` runs, and its last log",
            alert="MUTATIONS_BEHIND",
        ),
        Condition(
            "RELAY_OUTAGE",
            "a relay could not reach its queue or its log for longer than its patience",
            "bring the queue or the storage back; nothing is lost",
        ),
        Condition(
            "KINESIS_UNREACHABLE",
            "Kinesis throttled or failed for longer than the patience",
            "wait; where it throttles, see who else reads the shard",
        ),
        Condition(
            "KINESIS_CONSUMER_NOT_READY",
            "a registered consumer is not active after two minutes",
            "run again; see the stream's consumers in AWS",
        ),
        Condition(
            "KINESIS_CONSUMER_REMOVED",
            "a registered consumer was removed while it was read through",
            "the next start registers it again; see who removes it",
        ),
        Condition(
            "KINESIS_CONSUMER_BUSY",
            "the cause in a `KINESIS_UNREACHABLE`: a shard was subscribed to by the same consumer again and again",
            "give each query a `consumerName` of its own",
        ),
        Condition(
            "KINESIS_ANSWER_UNREADABLE",
            "an answer of Kinesis is cut off or no JSON",
            "nothing: it is requested again; if it stays, see what stands before the endpoint",
        ),
        Condition(
            "OFFSET_LOG_UNREADABLE",
            "Spark's offset log does not say where a batch ends; nothing was committed",
            "nothing; if it comes again, `deltaworks checkpoint repair`",
        ),
        Condition(
            "SPARK_UNAVAILABLE",
            "a share that Spark commits was met, or a clustered table is to be created, where no Spark runs",
            "none: the stream does it",
        ),
        Condition(
            "CHECKPOINT_SUPERSEDED",
            "a batch has landed with another slice than Spark's checkpoint has for it now (the checkpoint was replaced "
            "or lost files)",
            "nothing: the next run continues after it with a new checkpoint",
        ),
        Condition(
            "BATCH_STALLED",
            "a batch ran longer than `stall_seconds`; the job ended itself",
            "see the driver log for where; the next run resumes it",
        ),
        Condition(
            "PYTHON_WORKER_TIMEOUT",
            "a Python process that Spark started did not answer within Spark's ten seconds, as where many streams "
            "start at once on few cores",
            "nothing: the next run starts it again; if it stays so, let small streams share a driver "
            "(`stream_group`), or see the driver log for why Python cannot start",
        ),
        Condition(
            "SPARK_APPLICATION_ENDED",
            "the Spark application that a group of streams shares has ended, and all of them with it",
            "nothing: the next run resumes each; see the driver log for why",
        ),
        Condition("QUERY_ENDED", "a query ended without an error", "the next run starts it again"),
        Condition(
            "LIVE_INPUT_MISSING", "a live table's bronze table was not created in time", "check that the stream runs"
        ),
        Condition(
            "ANNOUNCEMENT_REFUSED",
            "a topic did not take the answer of a view, which is published with the next look that succeeds",
            "see the topic and keys below `alerts` of the environment",
        ),
        Condition(
            "STREAMS_UNHEALTHY",
            "the health DAG found at least one stream or relay unhealthy",
            "follow the row's next step",
            runbook="how-to/operate.md",
        ),
        Condition(
            "PROCESS_FAILED", "a relay's process ended without an error line", "read the lines above in the task log"
        ),
        Condition(
            "STREAM_STILL_RUNNING",
            "a stream did not end within the wait",
            "a long batch ends first; look at the driver log",
        ),
    ),
    *conditions_of(
        FencedError,
        Condition("OWNER_FENCED", "a successor raised the owner epoch in a table", "none: the successor continues"),
        Condition(
            "CHECKPOINT_IN_USE",
            "another driver has written the next file of the query's checkpoint",
            "none: the other one continues",
        ),
        Condition(
            "LEASE_LOST",
            "a relay or a stream lost its lease to a successor, or its storage did not answer",
            "none, or check the storage",
        ),
    ),
    *conditions_of(
        DeltaworksError,
        Condition(
            "JOB_FAILED",
            "a job failed in a way nobody foresaw",
            "read the traceback above the last line",
            default_retryable=True,
        ),
        Condition(
            "RELAY_FAILED",
            "a relay failed in a way nobody foresaw",
            "read the traceback in its log",
            default_retryable=True,
        ),
        Condition(
            "RULES_FAILED",
            "the process that judges rules failed in a way nobody foresaw",
            "read the traceback in its log; minutes that wait are judged once it runs again",
            default_retryable=True,
        ),
        Condition(
            "STREAM_FAILED",
            "a stream failed in a way nobody foresaw, as its heartbeat says",
            "read the driver log",
            default_retryable=True,
        ),
    ),
    Condition(
        "STREAM_PARKED",
        "a pipeline of a group has failed soon after its start too often; the others go on without it",
        "mend what its last failure names, then `deltaworks start PIPELINE`",
        alert="STREAM_UNHEALTHY",
        error=ContractError,
        runbook="how-to/operate.md#several-streams-in-one-driver",
    ),
)
