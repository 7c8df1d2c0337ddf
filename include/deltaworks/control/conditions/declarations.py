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
            "the source rejects the login or a permission",
            "fix the variables of `source.security`, or the user's permissions",
        ),
        Condition(
            "SOURCE_CERTIFICATE_REFUSED",
            "brokers and client reject each other's certificate, or a store cannot be read",
            "fix the stores of `source.security`, and the names in `bootstrap_servers`",
        ),
        Condition(
            "KAFKA_TOPIC_MISSING",
            "the brokers have no such topic, or hide it",
            "create it, or fix `source.topics`",
        ),
        Condition(
            "SOURCE_CERTIFICATE_MISSING",
            "a truststore or keystore does not exist here",
            "install it on the driver and every worker",
        ),
        Condition(
            "INPUT_MISSING",
            "an input file cannot be read, or a folder is empty",
            "pass files, folders, or `-` for standard input",
        ),
        Condition(
            "LANDING_KEY_INVALID",
            "the pipeline would not read that key, because of its prefix, glob or `partition_columns`",
            "choose the objects' folder: `--folder FOLDER`",
        ),
        Condition(
            "LANDING_REFUSED",
            "the landing bucket does not exist, or rejects objects",
            "check `landing` in include/environments; grant `s3:PutObject` on the pipeline's prefix",
        ),
        Condition(
            "LANDING_WITHOUT_OBJECTS",
            "the pipeline reads no objects, so it has no landing bucket",
            "send records to its stream or topic, see the message",
        ),
        Condition(
            "PIPELINE_EXISTS",
            "a pipeline of that name exists",
            "use another name, or delete the folder",
        ),
        Condition("SPEC_MISSING", "a spec file cannot be read", "create it, or correct the name"),
        Condition("SPEC_NOT_YAML", "a spec file is not YAML", "fix the named line"),
        Condition(
            "SPEC_INVALID",
            "a spec has errors, each with file, line, key and fix",
            "fix them, then run `deltaworks pipelines check`",
        ),
        Condition("OVERRIDE_INVALID", "a `DELTAWORKS_SET__…` variable is invalid", "fix or unset the variable"),
        Condition(
            "ALERT_CAUSE_UNKNOWN",
            "an alert has an unknown name",
            "use the suggested name, or add a row to `deltaworks.control.conditions.alerts`",
        ),
        Condition(
            "OVERRIDE_UNKNOWN",
            "an override names an unknown pipeline or relay, similar to a declared one",
            "correct the name; overrides of deleted pipelines only warn",
        ),
        Condition(
            "MUTATIONS_UNDECLARED", "the pipeline declares no `mutations`", "declare them, or use another pipeline"
        ),
        Condition("GROUP_UNKNOWN", "there is no such stream group", "use the suggested name"),
        Condition("PIPELINE_UNKNOWN", "there is no such pipeline", "use the suggested name"),
        Condition("DASHBOARD_UNKNOWN", "the pipeline declares no such dashboard", "use the suggested name"),
        Condition(
            "BACKTEST_SPAN_INVALID",
            "a backtest's time range is invalid or reversed",
            "write dates as YYYY-MM-DD, times as YYYY-MM-DDTHH:MM, in UTC",
        ),
        Condition(
            "RULE_SETTING_INVALID",
            "`--set` of a backtest names no key of a rule, has no value, or makes the rule invalid",
            "write `--set key=value` with the suggested key",
        ),
        Condition(
            "INCIDENTS_INVALID",
            "an incidents file is not CSV with `from` and `to`, or a line lacks a time",
            "fix the named line",
        ),
        Condition(
            "ANNOTATION_INVALID",
            "an annotation has no text, or an invalid time",
            "write a text, and a UTC time such as 2026-03-01T22:56",
        ),
        Condition(
            "SILENCE_INVALID",
            "a silence has an unknown alert, an invalid duration (maximum seven days) or no reason",
            "fix the named value",
        ),
        Condition(
            "SILENCE_UNREADABLE",
            "a silence is damaged or of another release, and ignored",
            "delete the named object",
        ),
        Condition(
            "DASHBOARD_SPAN_INVALID",
            "a dashboard's time range is invalid or reversed",
            "write both times in UTC, as `2026-01-31` or `2026-01-31T14:00`, in order",
        ),
        Condition("MODEL_UNKNOWN", "the pipeline declares no such model", "use the suggested name"),
        Condition(
            "MODEL_RUN_UNKNOWN",
            "the model has no training of that number",
            "use a number from `deltaworks models list PIPELINE`",
        ),
        Condition(
            "MODEL_SQL_INVALID",
            "the label SQL of a model fails; Spark's first line is given",
            "fix it: it reads the gold tables in `reads`",
        ),
        Condition(
            "MODEL_COLUMN_MISSING",
            "features or labels lack a column of the model",
            "add it to the SQL, fix the model, or withdraw it",
            runbook="how-to/train-models.md#withdraw-a-model",
        ),
        Condition("RELAY_UNKNOWN", "there is no such relay", "use the suggested name"),
        Condition(
            "CONTROL_TARGET_INVALID",
            "the target to stop, resume or unpin does not exist",
            "use a listed one; `deltaworks tables readers PIPELINE` lists readers",
        ),
        Condition(
            "TABLE_NOT_SUSPENDED", "the table to resume is not suspended", "`deltaworks tables` lists held tables"
        ),
        Condition("TABLE_UNKNOWN", "the pipeline has no such bronze table", "use one of the listed tables"),
        Condition("GOLD_TABLE_UNKNOWN", "the pipeline has no such gold table", "use one of the listed tables"),
        Condition(
            "REFERENCE_UNRESOLVED",
            "an `env:NAME` of a spec has no value",
            "set the variable",
        ),
        Condition(
            "SECRET_WEAK",
            "a secret is blank or a published default outside `local`",
            "set the named variable to a random value; `make secrets` generates those of the containers",
            runbook="how-to/deploy.md#secrets",
        ),
        Condition(
            "LOG_STORE_UNSAFE",
            "the lake is on S3, without the log store for concurrent writers",
            "remove the override of `spark.delta.logStore.s3a.impl`",
        ),
        Condition(
            "SOURCE_OPTION_INVALID",
            "an option of a streaming source is invalid",
            "fix the named option",
            runbook="reference/sources.md",
        ),
        Condition(
            "KINESIS_STREAM_MISSING",
            "the named stream does not exist",
            "check `streamName` or `streamARN`, `region`, `endpoint`",
        ),
        Condition(
            "KINESIS_REFUSED",
            "Kinesis rejected a call",
            "check region, endpoint, credentials and [permissions](reference/sources.md#permissions)",
        ),
        Condition(
            "KINESIS_CONSUMER_LIMIT",
            "the stream's limit of registered consumers is reached",
            "deregister an unused one of `deltaworks consumers list`",
        ),
        Condition(
            "PIPELINE_WITHOUT_CONSUMERS",
            "the pipeline does not read Kinesis",
            "name one whose `source.kind` is `kinesis`",
        ),
        Condition(
            "KINESIS_STATE_NOT_SHARED",
            "a task cannot see its driver's state",
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
            "the `grain` column of a gold table is not a timestamp",
            "use `date_trunc('minute', event_time)`, or omit `grain`",
        ),
        Condition(
            "GOLD_GRAIN_OUTSIDE_DATE",
            "a row's `grain` is outside its date partition, so hourly rebuilds would miss it",
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
            "select the inputs' column unchanged, or use `affects: all`",
        ),
        Condition(
            "GOLD_PARTITION_NOT_DATE",
            "`partition_by` is not a date, so changed dates do not map to it",
            "cast it to date, or use `affects: all`",
        ),
        Condition(
            "ORPHAN_AGE_TOO_SHORT",
            "the age would delete files that are still needed",
            "use 168 hours or more; a dry run may use less",
        ),
        Condition(
            "VACUUM_RETENTION_TOO_SHORT",
            "the retention is below 168 hours without a reason, or below 24",
            "use 168 hours or more, or the maintenance DAG with hours and a reason",
            runbook="how-to/operate.md#what-vacuum-deletes-and-what-holds-it-back",
        ),
        Condition(
            "READER_INVALID",
            "a reader's claim has an invalid name, version or duration",
            "use lower-case letters, digits and underscores, and at most 720 hours; repeat it to extend",
        ),
        Condition(
            "READER_UNREADABLE",
            "a reader's claim cannot be read, so its version is unknown",
            "repeat it with `deltaworks tables pin`, or delete the named object",
        ),
        Condition(
            "MUTATION_FILE_UNREADABLE",
            "a request file cannot be opened, or is not UTF-8 text",
            "pass a CSV file in UTF-8",
        ),
        Condition(
            "MUTATION_FILE_INVALID",
            "a request file has errors; the first ten are listed by line",
            "fix them; [mutations](reference/mutations.md#try-it-on-a-file-of-your-own) has the columns",
        ),
        Condition(
            "OBJECT_FORBIDDEN",
            "the landing bucket cannot be read: access to every object of a batch was denied",
            "grant `s3:GetObject` and `s3:ListBucket` to the stream's role",
        ),
        Condition(
            "ENRICHMENT_UNREADABLE",
            "an enrichment database is missing or damaged; the batch was not committed",
            "upload a valid database to the named key; the batch is retried",
        ),
        Condition(
            "WORKERS_CRASH",
            "Python workers crash even on a known-readable payload; nothing was quarantined",
            "find the cause in the executor's log, fix it, then `deltaworks start`",
            runbook="how-to/operate.md#a-worker-crashes",
        ),
        Condition(
            "QUEUE_REDRIVES_EARLY",
            "warning: the queue dead-letters a message after fewer than 3 deliveries",
            "set `maxReceiveCount` to 5 or more",
        ),
        Condition(
            "QUEUE_VISIBILITY_SHORT",
            "warning: the queue redelivers a message after less than 30 s",
            "set the visibility timeout to 120 s",
        ),
        Condition(
            "QUEUE_REFUSED",
            "the queue rejected the relay's URL, credentials or permissions",
            "check `queue_url` and `messaging` of the environment",
        ),
        Condition(
            "LISTING_REFUSED",
            "listing a relay's bucket is not permitted",
            "check `buckets`; grant `s3:ListBucket` (for `every_version` also `s3:ListBucketVersions`)",
        ),
        Condition(
            "LANDING_MISSING",
            "a relay lists or cleans buckets, but the environment declares no access",
            "declare `landing` in the environment",
        ),
        Condition(
            "RELAY_WITHOUT_QUEUE",
            "a relay without a queue cannot redrive",
            "find missed files with `deltaworks files reconcile`",
        ),
        Condition(
            "RELAY_CLEANUP_UNDECLARED",
            "a relay without `clean` cannot clean up",
            "declare it, such as `clean: {mode: delete, after_days: 30}`",
        ),
        Condition(
            "OBJECT_NOT_REMOVABLE",
            "deleting landed objects, or writing to the archive, is not permitted",
            "grant `s3:DeleteObject` on the bucket, `s3:PutObject` on the archive",
        ),
        Condition(
            "RELAY_LISTING_UNDECLARED",
            "a relay without `listing` cannot list",
            "declare `listing: {}` for it and restart it",
        ),
        Condition(
            "SOURCE_SCHEMA_UNSUPPORTED", 'a column of `format("s3-sqs")` has an unsupported type', "fix its type"
        ),
        Condition(
            "STATE_OF_ANOTHER_QUEUE",
            "the `stateLocation` belongs to another queue",
            "use a separate location",
        ),
        Condition(
            "CHANGES_NOT_ANNOUNCED",
            "no notification table announces the requested table",
            "declare one with `announces`, or read the change data feed",
        ),
        Condition(
            "CHANGES_POSITION_UNKNOWN",
            "the text is not a position of a read of changes",
            "pass `str(changes.position)` unchanged, or None",
        ),
        Condition("CHANGE_FEED_OFF", "the table has no change data feed", "enable it, or read through notifications"),
    ),
)
