"""Conditions of what is declared or requested: specs, options, permissions, queries, consumers and queues."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition, conditions_of
from deltaworks.errors import ConfigError

DECLARATIONS: Final = (
    *conditions_of(
        ConfigError,
        Condition(
            "SOURCE_LOGIN_REFUSED",
            "the source refuses the login, or what the user asks for",
            "mend the variables `source.security` refers to, or the user's rights",
        ),
        Condition(
            "SOURCE_CERTIFICATE_REFUSED",
            "brokers and client do not take each other's certificate, or a store cannot be read; the cause is named",
            "mend the stores of `source.security`, and the names in `bootstrap_servers`",
        ),
        Condition(
            "KAFKA_TOPIC_MISSING",
            "the brokers have no topic of that name, or do not show it",
            "create it, or mend `source.topics`",
        ),
        Condition(
            "SOURCE_CERTIFICATE_MISSING",
            "a truststore or keystore is not a file on this machine",
            "put it there, for the driver and for every worker",
        ),
        Condition(
            "INPUT_MISSING",
            "a file to land or to infer from is not there or may not be read, or a folder holds none",
            "give files, folders, or `-` for standard input",
        ),
        Condition(
            "LANDING_KEY_INVALID",
            "the pipeline would not read an object of that name: its prefix, glob or `partition_columns` say otherwise",
            "say in which folder below its place the objects belong: `--under FOLDER`",
        ),
        Condition(
            "LANDING_REFUSED",
            "the landing bucket is not there, or does not take objects from this login",
            "check `landing` in include/environments; grant `s3:PutObject` on the pipeline's prefix",
        ),
        Condition(
            "LANDING_WITHOUT_OBJECTS",
            "the pipeline reads no objects: there is no bucket to land in",
            "send records to its stream or topic; the message says how",
        ),
        Condition(
            "PIPELINE_EXISTS",
            "a pipeline of that name is declared already, and nothing is written over it",
            "give another name, or remove the folder",
        ),
        Condition("SPEC_MISSING", "a spec file cannot be read", "create it, or correct the name"),
        Condition("SPEC_NOT_YAML", "a spec file is not YAML; file and line are given", "mend the line"),
        Condition(
            "SPEC_INVALID",
            "a spec has mistakes; every one is listed with file, line, key and what to write",
            "mend them, then `deltaworks pipelines check`",
        ),
        Condition(
            "KUBERNETES_UNDECLARED",
            "manifests were asked for, and the environment says nothing of a cluster",
            "declare `kubernetes` in it, or name another environment in the file of settings",
            runbook="how-to/deploy.md#kubernetes",
        ),
        Condition(
            "KUBERNETES_SETTINGS_INVALID",
            "the file of settings has a line that is no `NAME=value`, or a secret; file, line or names are given",
            "mend the line; make secrets keys of the Secret",
            runbook="how-to/deploy.md#kubernetes",
        ),
        Condition("OVERRIDE_INVALID", "a `DELTAWORKS_SET__…` variable cannot be used", "mend or unset the variable"),
        Condition(
            "ALERT_CAUSE_UNKNOWN",
            "an alert was raised under a name that has no row",
            "use the nearest one that is named, or add a row to `deltaworks.control.conditions.alerts`",
        ),
        Condition(
            "OVERRIDE_UNKNOWN",
            "an override names a pipeline or relay that is not declared and looks like one that is; file and line are "
            "given",
            "correct the name; what is left from a pipeline that was removed is only remarked on by `pipelines check`",
        ),
        Condition(
            "MUTATIONS_UNDECLARED", "the pipeline declares no `mutations`", "declare them, or name another pipeline"
        ),
        Condition("GROUP_UNKNOWN", "no pipeline names such a group of streams", "use the nearest one that is given"),
        Condition("PIPELINE_UNKNOWN", "there is no such pipeline", "use the nearest one that is given"),
        Condition("DASHBOARD_UNKNOWN", "the pipeline declares no such dashboard", "use the nearest one that is given"),
        Condition(
            "BACKTEST_SPAN_INVALID",
            "a backtest is asked for between two times that are none, or of which the later one comes first",
            "write dates as YYYY-MM-DD and times as YYYY-MM-DDTHH:MM, in UTC",
        ),
        Condition(
            "RULE_SETTING_INVALID",
            "`--set` of a backtest names no key of a rule, has no value, or makes a rule that would be refused",
            "write `--set key=value` with a key of the rule; the message names the nearest one",
        ),
        Condition(
            "INCIDENTS_INVALID",
            "a file of incidents is no CSV with the columns `from` and `to`, or has a line without times",
            "mend the line that is named",
        ),
        Condition(
            "ANNOTATION_INVALID",
            "a note has no text, or the time it is of is none",
            "write the text, and a time such as 2026-03-01T22:56 in UTC",
        ),
        Condition(
            "SILENCE_INVALID",
            "a silence is of no alert, for no time or more than seven days, or has no reason",
            "write what is named: cause, hours and reason",
        ),
        Condition(
            "SILENCE_UNREADABLE",
            "a silence is torn, or of another release: it silences nothing",
            "delete the object that is named",
        ),
        Condition(
            "DASHBOARD_SPAN_INVALID",
            "a dashboard is asked for between what are no times, or from a later one to an earlier one",
            "write both in UTC, as `2026-01-31` or `2026-01-31T14:00`, the earlier one first",
        ),
        Condition("MODEL_UNKNOWN", "the pipeline declares no such model", "use the nearest one that is given"),
        Condition(
            "MODEL_RUN_UNKNOWN",
            "no training of a model has that number",
            "use one that `deltaworks models list PIPELINE` shows",
        ),
        Condition(
            "MODEL_SQL_INVALID",
            "the SQL of a model's label does not run; Spark's first line is given",
            "mend it: it reads the gold tables that `reads` names",
        ),
        Condition(
            "MODEL_COLUMN_MISSING",
            "features, or the answer of a label, lack a column that a model names or a published one takes",
            "add it to the SQL, mend the model, or withdraw it: delete its folder below `models/`",
            runbook="how-to/train-models.md#withdraw-a-model",
        ),
        Condition("RELAY_UNKNOWN", "there is no such relay", "use the nearest one that is given"),
        Condition(
            "CONTROL_TARGET_INVALID",
            "what is to be stopped, resumed or released is not there",
            "the message lists what is; `deltaworks tables readers PIPELINE` lists readers",
        ),
        Condition(
            "TABLE_NOT_SUSPENDED", "the table to resume is not suspended", "`deltaworks tables` lists what is held"
        ),
        Condition("TABLE_UNKNOWN", "the pipeline has no such bronze table", "use one of those that are listed"),
        Condition("GOLD_TABLE_UNKNOWN", "the pipeline has no such gold table", "use one of those that are listed"),
        Condition(
            "REFERENCE_UNRESOLVED",
            "an `env:NAME` of a spec has no value",
            "set the variable; the embedded stack sets its own",
        ),
        Condition(
            "SECRET_WEAK",
            "outside `local`, a secret is blank or one that everybody knows; file, key and variable are named",
            "set the variable to a random value; `make secrets` makes those of the containers",
            runbook="how-to/deploy.md#secrets",
        ),
        Condition(
            "LOG_STORE_UNSAFE",
            "the lake is on S3 and the log store that keeps writers apart is not set",
            "remove the override of `spark.delta.logStore.s3a.impl`",
        ),
        Condition(
            "SOURCE_OPTION_INVALID",
            "an option of a streaming source is wrong; it is named",
            "mend the option",
            runbook="reference/sources.md",
        ),
        Condition(
            "KINESIS_STREAM_MISSING",
            "there is no such stream where the options say",
            "check `streamName` or `streamARN`, `region`, `endpoint`",
        ),
        Condition(
            "KINESIS_REFUSED",
            "Kinesis refused a call",
            "check region, endpoint, keys and [permissions](reference/sources.md#permissions)",
        ),
        Condition(
            "KINESIS_CONSUMER_LIMIT",
            "the stream takes no more registered consumers",
            "`deltaworks consumers list`, and remove one that is read no more",
        ),
        Condition(
            "PIPELINE_WITHOUT_CONSUMERS",
            "consumers were asked for of a pipeline that does not read Kinesis",
            "name one whose `source.kind` is `kinesis`",
        ),
        Condition(
            "KINESIS_STATE_NOT_SHARED",
            "a task does not see the state its driver wrote",
            "give a `stateLocation` that all executors share",
        ),
        Condition("GOLD_SQL_INVALID", "the SQL of a gold table does not run", "mend the file that is named"),
        Condition("GOLD_COLUMN_MISSING", "the SQL gives no column called like `partition_by`", "select that column"),
        Condition(
            "GOLD_CHECK_INVALID",
            "a check of a gold table names a column its answer does not have",
            "mend `checks` of the table, or its SQL",
        ),
        Condition(
            "GOLD_GRAIN_NOT_TIME",
            "the column of a gold table's `grain` is not a timestamp, so it does not tell which hours a row is of",
            "take `date_trunc('minute', event_time)`, or leave `grain` out",
        ),
        Condition(
            "GOLD_GRAIN_OUTSIDE_DATE",
            "a row's `grain` column does not lie in its date, so that no rebuild of an hour would replace the row",
            "derive `partition_by` from the grain column, by `to_date`",
        ),
        Condition(
            "GOLD_DATES_INVALID",
            "the dates of a gold build cannot be parsed",
            "write `2026-01-01` or `2026-01-01..2026-01-07`",
        ),
        Condition(
            "GOLD_PARTITION_NOT_TEXT",
            "the partition column of an answer with `affects: same` is not text",
            "take it over from the inputs as it is, or declare `affects: all`",
        ),
        Condition(
            "GOLD_PARTITION_NOT_DATE",
            "`partition_by` is not a date, so changed dates do not map to it",
            "cast it to date, or declare `affects: all`",
        ),
        Condition(
            "ORPHAN_AGE_TOO_SHORT",
            "an age that would remove files of a batch or a version still needed",
            "use 168 hours or more; a dry run may use less",
        ),
        Condition(
            "VACUUM_RETENTION_TOO_SHORT",
            "a retention below 168 hours without a reason, or below 24 at all: files still in use would go",
            "use 168 hours or more; for less trigger the maintenance DAG with hours and a reason",
            runbook="how-to/operate.md#what-vacuum-deletes-and-what-holds-it-back",
        ),
        Condition(
            "READER_INVALID",
            "a reader cannot keep a version so: its name, the version or the hours",
            "a name in lower-case letters, digits and underscores, at most 720 hours; declare it again to continue",
        ),
        Condition(
            "READER_UNREADABLE",
            "the record of a reader that keeps a version cannot be read, so what it protects is unknown",
            "declare it again with `deltaworks tables keep`, or delete the object that is named",
        ),
        Condition(
            "MUTATION_FILE_UNREADABLE",
            "a file of requests cannot be opened, or is not UTF-8 text",
            "give the path of a CSV file, saved as UTF-8",
        ),
        Condition(
            "MUTATION_FILE_INVALID",
            "a file of requests has mistakes; the first ten are listed with their lines",
            "mend them; [mutations](reference/mutations.md#try-it-on-a-file-of-your-own) has the columns",
        ),
        Condition(
            "OBJECT_FORBIDDEN",
            "the landing bucket may not be read: no object of a batch could be, and no key beside one be asked for",
            "grant `s3:GetObject` and `s3:ListBucket` to the stream's role",
        ),
        Condition(
            "ENRICHMENT_UNREADABLE",
            "a database that events are enriched from is missing or damaged; nothing of the batch landed",
            "put a sound one to the key that is named; the batch is then read again, whole",
        ),
        Condition(
            "WORKERS_CRASH",
            "Python workers of a stream die on whatever they read, also on a payload that every worker can read; "
            "nothing was quarantined for it",
            "see what they die of in the executor's log, mend the environment, then `deltaworks start`",
            runbook="how-to/operate.md#a-task-that-dies",
        ),
        Condition(
            "QUEUE_REDRIVES_EARLY",
            "a warning of relay and `deltaworks wire`: the queue makes a dead letter of a message after fewer than 3 "
            "deliveries",
            "set `maxReceiveCount` to 5 or more",
        ),
        Condition(
            "QUEUE_VISIBILITY_SHORT",
            "a warning of both: the queue delivers a message again after less than 30 s",
            "set the visibility timeout to 120 s",
        ),
        Condition(
            "QUEUE_REFUSED",
            "the queue refused the relay: wrong address, keys or permissions",
            "check `queue_url` and `messaging` of the environment",
        ),
        Condition(
            "LISTING_REFUSED",
            "a bucket a relay lists may not be listed",
            "check its `buckets`; grant `s3:ListBucket` (with `overwrites: every_version` `s3:ListBucketVersions`)",
        ),
        Condition(
            "LANDING_MISSING",
            "a relay lists or cleans its buckets, and the environment does not say how they are reached",
            "give the environment a `landing`",
        ),
        Condition(
            "RELAY_WITHOUT_QUEUE",
            "a redrive was asked of a relay that reads no queue",
            "`deltaworks files reconcile` finds what such a relay missed",
        ),
        Condition(
            "RELAY_CLEANUP_UNDECLARED",
            "a clean-up was asked of a relay that declares no `clean`",
            "declare it, such as `clean: {mode: delete, after_days: 30}`",
        ),
        Condition(
            "OBJECT_NOT_REMOVABLE",
            "landed objects may not be deleted, or the archive may not be written",
            "grant `s3:DeleteObject` on the bucket, `s3:PutObject` on the archive",
        ),
        Condition(
            "RELAY_LISTING_UNDECLARED",
            "a listing was asked of a relay that reads nothing but messages",
            "declare `listing: {}` for it and restart it",
        ),
        Condition("SOURCE_SCHEMA_UNSUPPORTED", 'a column of `format("s3-sqs")` cannot be filled', "mend its type"),
        Condition(
            "STATE_OF_ANOTHER_QUEUE",
            "the `stateLocation` of a query holds what another queue announced",
            "give the query one of its own",
        ),
        Condition(
            "CHANGES_NOT_ANNOUNCED",
            "no notification table announces the table whose changes are asked for",
            "declare one with `announces`, or read through the change data feed",
        ),
        Condition(
            "CHANGES_POSITION_UNKNOWN",
            "a text is not a position returned by a read of changes",
            "pass `str(changes.position)` unchanged, or None",
        ),
        Condition(
            "CHANGE_FEED_OFF", "the table has no change data feed", "switch it on, or read through notifications"
        ),
    ),
)
