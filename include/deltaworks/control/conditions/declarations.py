"""Conditions of specs, options, permissions, queries, consumers and queues."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition, conditions_of
from deltaworks.errors import ConfigError

DECLARATIONS: Final = (
    *conditions_of(
        ConfigError,
        Condition(
            "SOURCE_LOGIN_REFUSED",
            "the source rejects the login or a permission of the user",
            "fix the variables that `source.security` refers to, or the user's permissions",
        ),
        Condition(
            "SOURCE_CERTIFICATE_REFUSED",
            "brokers and client do not accept each other's certificate, or a store cannot be read; the cause is named",
            "fix the stores of `source.security`, and the names in `bootstrap_servers`",
        ),
        Condition(
            "KAFKA_TOPIC_MISSING",
            "the brokers have no topic of that name, or hide it",
            "create it, or fix `source.topics`",
        ),
        Condition(
            "SOURCE_CERTIFICATE_MISSING",
            "a truststore or keystore does not exist on this machine",
            "install it on the driver and on every worker",
        ),
        Condition(
            "INPUT_MISSING",
            "an input file does not exist or cannot be read, or a folder is empty",
            "pass files, folders, or `-` for standard input",
        ),
        Condition(
            "LANDING_KEY_INVALID",
            "the pipeline would not read an object of that key, because of its prefix, glob or `partition_columns`",
            "choose the folder of the objects: `--folder FOLDER`",
        ),
        Condition(
            "LANDING_REFUSED",
            "the landing bucket does not exist, or rejects objects from this login",
            "check `landing` in include/environments; grant `s3:PutObject` on the pipeline's prefix",
        ),
        Condition(
            "LANDING_WITHOUT_OBJECTS",
            "the pipeline reads no objects, so there is no bucket to land in",
            "send records to its stream or topic, as the message describes",
        ),
        Condition(
            "PIPELINE_EXISTS",
            "a pipeline of that name already exists and is not overwritten",
            "use another name, or delete the folder",
        ),
        Condition("SPEC_MISSING", "a spec file cannot be read", "create it, or correct the name"),
        Condition("SPEC_NOT_YAML", "a spec file is not YAML; file and line are named", "fix the line"),
        Condition(
            "SPEC_INVALID",
            "a spec has errors; each is listed with file, line, key and fix",
            "fix them, then run `deltaworks pipelines check`",
        ),
        Condition("OVERRIDE_INVALID", "a `DELTAWORKS_SET__…` variable is invalid", "fix or unset the variable"),
        Condition(
            "ALERT_CAUSE_UNKNOWN",
            "an alert was raised with an unknown name",
            "use the suggested name, or add a row to `deltaworks.control.conditions.alerts`",
        ),
        Condition(
            "OVERRIDE_UNKNOWN",
            "an override names an undeclared pipeline or relay with a similar name to a declared one; file and line "
            "are given",
            "correct the name; overrides of deleted pipelines are only a warning of `pipelines check`",
        ),
        Condition(
            "MUTATIONS_UNDECLARED", "the pipeline declares no `mutations`", "declare them, or name another pipeline"
        ),
        Condition("GROUP_UNKNOWN", "there is no such stream group", "use the suggested name"),
        Condition("PIPELINE_UNKNOWN", "there is no such pipeline", "use the suggested name"),
        Condition("DASHBOARD_UNKNOWN", "the pipeline declares no such dashboard", "use the suggested name"),
        Condition(
            "BACKTEST_SPAN_INVALID",
            "the time range of a backtest is invalid or reversed",
            "write dates as YYYY-MM-DD and times as YYYY-MM-DDTHH:MM, in UTC",
        ),
        Condition(
            "RULE_SETTING_INVALID",
            "`--set` of a backtest names no key of a rule, has no value, or makes the rule invalid",
            "write `--set key=value` with a key of the rule; the message suggests one",
        ),
        Condition(
            "INCIDENTS_INVALID",
            "an incidents file is not CSV with the columns `from` and `to`, or a line lacks a time",
            "fix the named line",
        ),
        Condition(
            "ANNOTATION_INVALID",
            "an annotation has no text, or an invalid time",
            "write a text, and a time such as 2026-03-01T22:56 in UTC",
        ),
        Condition(
            "SILENCE_INVALID",
            "a silence has an unknown alert, an invalid duration (at most seven days) or no reason",
            "fix the named value: cause, hours or reason",
        ),
        Condition(
            "SILENCE_UNREADABLE",
            "a silence is damaged or of another release, and has no effect",
            "delete the named object",
        ),
        Condition(
            "DASHBOARD_SPAN_INVALID",
            "the time range of a dashboard is invalid or reversed",
            "write both times in UTC, as `2026-01-31` or `2026-01-31T14:00`, the earlier one first",
        ),
        Condition("MODEL_UNKNOWN", "the pipeline declares no such model", "use the suggested name"),
        Condition(
            "MODEL_RUN_UNKNOWN",
            "the model has no training run of that number",
            "use a number from `deltaworks models list PIPELINE`",
        ),
        Condition(
            "MODEL_SQL_INVALID",
            "the SQL of a model's label fails; Spark's first line is given",
            "fix it: it reads the gold tables that `reads` names",
        ),
        Condition(
            "MODEL_COLUMN_MISSING",
            "features or labels lack a column that a model uses",
            "add it to the SQL, fix the model, or withdraw it: delete its folder below `models/`",
            runbook="how-to/train-models.md#withdraw-a-model",
        ),
        Condition("RELAY_UNKNOWN", "there is no such relay", "use the suggested name"),
        Condition(
            "CONTROL_TARGET_INVALID",
            "the target to stop, resume or unpin does not exist",
            "the message lists the existing ones; `deltaworks tables readers PIPELINE` lists readers",
        ),
        Condition(
            "TABLE_NOT_SUSPENDED", "the table to resume is not suspended", "`deltaworks tables` lists held tables"
        ),
        Condition("TABLE_UNKNOWN", "the pipeline has no such bronze table", "use one of the listed tables"),
        Condition("GOLD_TABLE_UNKNOWN", "the pipeline has no such gold table", "use one of the listed tables"),
        Condition(
            "REFERENCE_UNRESOLVED",
            "an `env:NAME` of a spec has no value",
            "set the variable; the embedded stack sets its own",
        ),
        Condition(
            "SECRET_WEAK",
            "a secret is blank or a published default outside `local`; file, key and variable are named",
            "set the variable to a random value; `make secrets` generates those of the containers",
            runbook="how-to/deploy.md#secrets",
        ),
        Condition(
            "LOG_STORE_UNSAFE",
            "the lake is on S3, but the log store for concurrent writers is not configured",
            "remove the override of `spark.delta.logStore.s3a.impl`",
        ),
        Condition(
            "SOURCE_OPTION_INVALID",
            "an option of a streaming source is invalid; it is named",
            "fix the option",
            runbook="reference/sources.md",
        ),
        Condition(
            "KINESIS_STREAM_MISSING",
            "the options name a stream that does not exist",
            "check `streamName` or `streamARN`, `region`, `endpoint`",
        ),
        Condition(
            "KINESIS_REFUSED",
            "Kinesis rejected a call",
            "check region, endpoint, credentials and [permissions](reference/sources.md#permissions)",
        ),
        Condition(
            "KINESIS_CONSUMER_LIMIT",
            "the stream accepts no more registered consumers",
            "run `deltaworks consumers list`, and deregister an unused one",
        ),
        Condition(
            "PIPELINE_WITHOUT_CONSUMERS",
            "the pipeline does not read Kinesis, so it has no registered consumers",
            "name one whose `source.kind` is `kinesis`",
        ),
        Condition(
            "KINESIS_STATE_NOT_SHARED",
            "a task cannot see the state its driver wrote",
            "use a `stateLocation` that all executors share",
        ),
        Condition("GOLD_SQL_INVALID", "the SQL of a gold table fails", "fix the named file"),
        Condition("GOLD_COLUMN_MISSING", "the SQL does not select the `partition_by` column", "select that column"),
        Condition(
            "GOLD_CHECK_INVALID",
            "a check of a gold table names an unknown column",
            "fix `checks` of the table, or its SQL",
        ),
        Condition(
            "GOLD_GRAIN_NOT_TIME",
            "the `grain` column of a gold table is not a timestamp, so the hours of a row are unknown",
            "use `date_trunc('minute', event_time)`, or omit `grain`",
        ),
        Condition(
            "GOLD_GRAIN_OUTSIDE_DATE",
            "a row's `grain` is outside its date partition, so no hourly rebuild would replace the row",
            "derive `partition_by` from the grain column with `to_date`",
        ),
        Condition(
            "GOLD_DATES_INVALID",
            "the dates of a gold build cannot be parsed",
            "write `2026-01-01` or `2026-01-01..2026-01-07`",
        ),
        Condition(
            "GOLD_PARTITION_NOT_TEXT",
            "the partition column of a table with `affects: same` is not text",
            "select the inputs' column unchanged, or declare `affects: all`",
        ),
        Condition(
            "GOLD_PARTITION_NOT_DATE",
            "`partition_by` is not a date, so changed dates do not map to it",
            "cast it to date, or declare `affects: all`",
        ),
        Condition(
            "ORPHAN_AGE_TOO_SHORT",
            "the age would delete files of a batch or version that is still needed",
            "use 168 hours or more; a dry run may use less",
        ),
        Condition(
            "VACUUM_RETENTION_TOO_SHORT",
            "the retention is below 168 hours without a reason, or below 24: files in use would be deleted",
            "use 168 hours or more; for less, trigger the maintenance DAG with hours and a reason",
            runbook="how-to/operate.md#what-vacuum-deletes-and-what-holds-it-back",
        ),
        Condition(
            "READER_INVALID",
            "a reader's claim has an invalid name, version or duration",
            "use lower-case letters, digits and underscores, and at most 720 hours; repeat the claim to extend it",
        ),
        Condition(
            "READER_UNREADABLE",
            "the claim of a reader cannot be read, so the pinned version is unknown",
            "repeat it with `deltaworks tables pin`, or delete the named object",
        ),
        Condition(
            "MUTATION_FILE_UNREADABLE",
            "a request file cannot be opened, or is not UTF-8 text",
            "pass the path of a CSV file in UTF-8",
        ),
        Condition(
            "MUTATION_FILE_INVALID",
            "a request file has errors; the first ten are listed with their lines",
            "fix them; [mutations](reference/mutations.md#try-it-on-a-file-of-your-own) has the columns",
        ),
        Condition(
            "OBJECT_FORBIDDEN",
            "the landing bucket cannot be read: access was denied to every object of a batch, and to a missing key",
            "grant `s3:GetObject` and `s3:ListBucket` to the stream's role",
        ),
        Condition(
            "ENRICHMENT_UNREADABLE",
            "an enrichment database is missing or damaged; nothing of the batch was committed",
            "upload a valid database to the named key; the batch is then read again",
        ),
        Condition(
            "WORKERS_CRASH",
            "Python workers of a stream crash on any input, including a payload that is known to be readable; "
            "nothing was quarantined",
            "find the cause in the executor's log, fix the environment, then run `deltaworks start`",
            runbook="how-to/operate.md#a-task-that-dies",
        ),
        Condition(
            "QUEUE_REDRIVES_EARLY",
            "warning of the relay and of `deltaworks wire`: the queue dead-letters a message after fewer than 3 "
            "deliveries",
            "set `maxReceiveCount` to 5 or more",
        ),
        Condition(
            "QUEUE_VISIBILITY_SHORT",
            "warning of the relay and of `deltaworks wire`: the queue redelivers a message after less than 30 s",
            "set the visibility timeout to 120 s",
        ),
        Condition(
            "QUEUE_REFUSED",
            "the queue rejected the relay: wrong URL, credentials or permissions",
            "check `queue_url` and `messaging` of the environment",
        ),
        Condition(
            "LISTING_REFUSED",
            "listing a relay's bucket is not permitted",
            "check its `buckets`; grant `s3:ListBucket` (with `overwrites: every_version` also "
            "`s3:ListBucketVersions`)",
        ),
        Condition(
            "LANDING_MISSING",
            "a relay lists or cleans buckets, but the environment does not declare access to them",
            "declare `landing` in the environment",
        ),
        Condition(
            "RELAY_WITHOUT_QUEUE",
            "a redrive was requested of a relay without a queue",
            "run `deltaworks files reconcile` to find missed files",
        ),
        Condition(
            "RELAY_CLEANUP_UNDECLARED",
            "a clean-up was requested of a relay without `clean`",
            "declare it, such as `clean: {mode: delete, after_days: 30}`",
        ),
        Condition(
            "OBJECT_NOT_REMOVABLE",
            "deleting landed objects, or writing to the archive, is not permitted",
            "grant `s3:DeleteObject` on the bucket, `s3:PutObject` on the archive",
        ),
        Condition(
            "RELAY_LISTING_UNDECLARED",
            "a listing was requested of a relay that only reads messages",
            "declare `listing: {}` for it and restart it",
        ),
        Condition(
            "SOURCE_SCHEMA_UNSUPPORTED", 'a column of `format("s3-sqs")` has an unsupported type', "fix its type"
        ),
        Condition(
            "STATE_OF_ANOTHER_QUEUE",
            "the `stateLocation` of a query contains the state of another queue",
            "use a separate location",
        ),
        Condition(
            "CHANGES_NOT_ANNOUNCED",
            "no notification table announces the requested table",
            "declare one with `announces`, or read the change data feed",
        ),
        Condition(
            "CHANGES_POSITION_UNKNOWN",
            "the text is not a position returned by a read of changes",
            "pass `str(changes.position)` unchanged, or None",
        ),
        Condition("CHANGE_FEED_OFF", "the table has no change data feed", "enable it, or read through notifications"),
    ),
)
