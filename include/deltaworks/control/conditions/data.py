"""Conditions of data, sources and tables."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition, conditions_of
from deltaworks.errors import ContractError

DATA: Final = (
    *conditions_of(
        ContractError,
        Condition(
            "VIEW_UNREADABLE",
            "a published view's SQL fails",
            "run it with `deltaworks sql`, and fix its file",
        ),
        Condition(
            "RULE_BROKEN",
            "the SQL of a rule fails, takes too long, or its result lacks a column",
            "fix the named file; test it with `deltaworks alerts backtest`",
            runbook="how-to/write-rules.md#a-rule-is-broken",
        ),
        Condition(
            "RULE_STATE_UNREADABLE",
            "the state of a rule is damaged or of another release",
            "delete the named object; evaluation restarts now",
        ),
        Condition(
            "SUMMARY_UNREADABLE",
            "a page summary is damaged or of another release",
            "nothing: the next write replaces it",
        ),
        Condition(
            "ANNOTATION_UNREADABLE",
            "an annotation is damaged or of another release",
            "delete the named object",
        ),
        Condition(
            "ANNOUNCEMENT_TOO_LARGE",
            "a view's result exceeds SNS's message limit",
            "aggregate further, select fewer columns, or use LIMIT",
        ),
        Condition(
            "GOLD_SWAP_UNSUPPORTED",
            "a file swap would break the named feature of the gold table",
            "build it with `full`, or drop the feature",
        ),
        Condition(
            "GOLD_CHECK_FAILED",
            "a gold build failed its checks; readers see the previous version",
            "fix the data, the SQL or the check, then clear the task",
            alert="GOLD_CHECK_FAILED",
        ),
        Condition(
            "REFERENCE_INVALID",
            "a reference file lacks a column, or has an invalid value or key; readers see the previous version",
            "fix the file, or its declared columns and key",
        ),
        Condition(
            "REFERENCE_UNREADABLE",
            "a reference file is missing, outside its folder, or above 16 MiB; readers see the previous version",
            "store it where `file` or `object` says",
        ),
        Condition(
            "MODEL_INPUT_MISSING",
            "a gold table of a model's training is not built",
            "build it: `deltaworks gold build PIPELINE`",
        ),
        Condition(
            "MODEL_UNREADABLE",
            "a model's manifest is damaged or of another release",
            "restore it, run the release that wrote it, or delete its folder",
        ),
        Condition(
            "CHANGES_EXPIRED",
            "changes since a position have left the log, or their files are deleted",
            "read all rows with `since=None`, and read more often",
        ),
        Condition(
            "CHANGES_STARTED_OVER",
            "a position refers to another table, or a recreated or restored one",
            "delete derived data, and read all rows with `since=None`",
        ),
        Condition(
            "INPUT_DAMAGED",
            "an input file is damaged; landed events are kept",
            "land it again; existing objects are skipped",
        ),
        Condition(
            "INPUT_WRONG_FORMAT",
            "a file does not have the declared format",
            "land files of that format, or fix `source.format`",
        ),
        Condition(
            "INPUT_TOO_LARGE",
            "a Parquet or Avro file exceeds the maximum object size",
            "write several files, or raise `source.max_object_bytes`",
        ),
        Condition(
            "FORMAT_UNKNOWN",
            "the format of the named files cannot be inferred, or they have several",
            "use one format, or write `pipeline.yaml` by hand, see docs/reference/pipeline/index.md",
        ),
        Condition(
            "EVENTS_WITHOUT_TIME",
            "most events have no field with a time",
            "name the field with `--time`, or have producers send one",
        ),
        Condition(
            "SOURCE_HAS_NO_OBJECTS",
            "the pipeline's source has no objects to re-read",
            "use the tables' rows; complete quarantined rows can be replayed",
        ),
        Condition(
            "SOURCE_EXPIRED",
            "the source no longer has some unread records",
            "check what was lost and why; `allow_data_loss: true` continues",
        ),
        Condition(
            "KAFKA_TOPIC_REPLACED",
            "a topic was recreated, so its offsets are invalid",
            "`deltaworks pipelines start-over`, or use another topic name",
        ),
        Condition(
            "RECORD_SEQ_EXHAUSTED",
            "a partition, shard or record has no free number in `_seq`",
            "read it in a separate pipeline",
        ),
        Condition("DELTA_SOURCE_MISSING", "the source table does not exist", "start the pipeline that writes it"),
        Condition(
            "DELTA_SOURCE_REWRITTEN",
            "rows of the source table are rewritten",
            "read its input table, or declare `change_feed: true` or `skip_change_commits: true`",
        ),
        Condition(
            "DELTA_SOURCE_REPLACED",
            "the source table was replaced by another one",
            "`deltaworks pipelines start-over`, or restore the former table",
        ),
        Condition(
            "DELTA_SOURCE_WITHOUT_CHANGES",
            "`change_feed: true`, but the table has no change data feed",
            "set `delta.enableChangeDataFeed` on it",
        ),
        Condition(
            "DELTA_SOURCE_MID_VERSION",
            "a checkpoint was lost within a version of the source table",
            "restore it, or start the pipeline over",
        ),
        Condition(
            "TABLE_SCHEMA_DIFFERS",
            "a column has another type than declared",
            "declare the existing type, or rename the column",
        ),
        Condition(
            "SPEC_CHANGE_UNSAFE",
            "an edit of `pipeline.yaml` would damage a running pipeline's tables",
            "get advice from `deltaworks pipelines diff PIPELINE`",
            runbook="reference/pipeline/changes.md#changing-a-running-pipeline",
        ),
        Condition(
            "SPEC_RECORD_UNREADABLE",
            "the record of a stream's last spec is damaged or of a later release",
            "run the release that wrote it",
        ),
        Condition(
            "FIELD_UNDECLARED",
            "an event has an undeclared field, with `evolve: fail`",
            "declare a column for it, or another `evolve`",
        ),
        Condition(
            "RULE_FAILED",
            "an event violates a rule with `on_fail: fail`; the batch was not committed",
            "fix the data or the rule, then restart the stream",
        ),
        Condition("RULE_UNUSABLE", "a rule cannot be evaluated on the data", "fix its check"),
        Condition(
            "TABLE_PARTITIONING_DIFFERS",
            "a table's partitioning differs from the declared one",
            "declare the existing partitioning, or use a new table",
        ),
        Condition(
            "TABLE_NOT_DECLARED",
            "batches hold rows of an undeclared table",
            "declare it until it has caught up",
        ),
        Condition(
            "HELD_BATCH_MISSING",
            "a held table's prepared batch is missing",
            "restore the object, or reprocess that batch",
        ),
        Condition(
            "ROWS_REFUSED",
            "a constraint or NOT NULL of a table rejects rows",
            "change it, or quarantine such rows with a rule; then resume the table",
        ),
        Condition(
            "PREPARED_FILES_INCOMPATIBLE",
            "files of an earlier spec do not fit the table's types",
            "restore their type or column, then resume the table",
        ),
        Condition(
            "HELD_RECORD_UNREADABLE",
            "the record of a held table is damaged",
            "resume the table; the ledger has its batches",
        ),
        Condition(
            "HELD_RECORD_LOST",
            "the record of a held table was deleted",
            "resume the table; the ledger has its batches",
        ),
        Condition(
            "COMMIT_REFUSED",
            "delta-rs does not support a feature of this table",
            "declare `writer: spark` for the table",
        ),
        Condition(
            "MUTATION_BATCH_UNREADABLE",
            "a mutation batch's record is damaged, missing or of a later release",
            "restore it, or run the release that wrote it",
        ),
        Condition(
            "MUTATION_BOUNDS_UNAVAILABLE",
            "the start version of an unfinished mutation batch no longer exists",
            "`deltaworks mutations run PIPELINE --everything --no-dry-run`",
        ),
        Condition(
            "NOTIFICATION_OVERLAPS",
            "a bucket already sends these events to another target, and S3 allows one",
            "subscribe the queue to that topic, or choose prefixes that do not overlap",
        ),
        Condition(
            "LOG_REPLACED",
            "the file event log was recreated, so positions are invalid",
            "restore the former log, or `deltaworks pipelines start-over`",
        ),
        Condition(
            "LOG_DAMAGED",
            "a commit of the file event log is damaged",
            "stop the relay, restore its `_delta_log`, restart its readers, start the relay",
        ),
        Condition(
            "LOG_ROLLED_BACK",
            "the file event log ends before a reader's position",
            "stop the relay and restore the log, or `deltaworks pipelines start-over`",
        ),
        Condition(
            "LOG_WITHOUT_STATISTICS",
            "another writer than the relay wrote the file event log",
            "restore the log to the previous version",
        ),
        Condition(
            "APPEND_OUTCOME_UNKNOWN",
            "another append started before the outcome of a relay's append was known",
            "restart the relay; it checks the outcome",
        ),
        Condition(
            "OBJECT_MISSING",
            "an announced object was deleted",
            "its row is in quarantine; have it sent again if needed",
        ),
        Condition(
            "OBJECT_TOO_LARGE",
            "an object, compressed or not, exceeds `source.max_object_bytes`",
            "its row is in quarantine; raise the limit and replay it",
        ),
        Condition(
            "OBJECT_CHANGED",
            "an announced object was replaced before it was read",
            "nothing: the new content has its own event",
        ),
        Condition(
            "OBJECT_UNREADABLE",
            "an object is archived, or its gzip content is damaged",
            "restore it, or have it sent again",
        ),
        Condition(
            "KINESIS_POSITION_EXPIRED",
            "records of the named shard and range may have expired unread",
            "raise the stream's retention; `allowDataLoss` continues with a gap",
        ),
        Condition(
            "KINESIS_REPLAY_DIFFERS",
            "a repeated batch differs from the first read",
            "check that `deaggregate` is unchanged, and that no other query uses the state",
        ),
        Condition(
            "KINESIS_POSITION_INVALID",
            "a shard does not know the query's position",
            "the stream was replaced: start a new query",
        ),
        Condition(
            "KINESIS_STREAM_REPLACED",
            "the stream was deleted and recreated",
            "start a new query with a new `stateLocation`",
        ),
        Condition(
            "KINESIS_STATE_LOST",
            "the state lacks the batch to repeat or continue",
            "restore the objects below `stateLocation`, or start a new query at a timestamp",
        ),
        Condition(
            "KINESIS_STATE_OF_ANOTHER_QUERY",
            "a query without a checkpoint found another query's state",
            "use its checkpoint, `startOffset`, or a separate `stateLocation`",
        ),
        Condition(
            "KINESIS_STATE_VANISHED",
            "an object of the state was deleted",
            "exempt `stateLocation` from lifecycle rules, then run again",
        ),
        Condition(
            "KINESIS_SHARD_UNNUMBERED",
            "a shard id is not in Kinesis' format",
            "check that the endpoint is Kinesis",
        ),
    ),
)
