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
            "the SQL of a published view fails",
            "run the view with `deltaworks sql`, which shows the same error, and fix its file",
        ),
        Condition(
            "RULE_BROKEN",
            "the SQL of a rule fails, takes too long, or its result lacks a column",
            "fix the named file; `deltaworks pipelines check` and `deltaworks alerts backtest` run it too",
            runbook="how-to/write-rules.md#a-rule-is-broken",
        ),
        Condition(
            "RULE_STATE_UNREADABLE",
            "the state of a rule is damaged or of another release",
            "delete the named object; evaluation then starts now",
        ),
        Condition(
            "SUMMARY_UNREADABLE",
            "a page summary is damaged or of another release, and counts as missing",
            "nothing: the next write replaces it",
        ),
        Condition(
            "ANNOTATION_UNREADABLE",
            "an annotation of a pipeline is damaged or of another release",
            "delete the named object",
        ),
        Condition(
            "ANNOUNCEMENT_TOO_LARGE",
            "the result of a view exceeds the message limit of SNS",
            "aggregate further, select fewer columns, or use LIMIT",
        ),
        Condition(
            "GOLD_SWAP_UNSUPPORTED",
            "the gold table has a feature that a file swap would break; it is named",
            "build it with `full`, or drop the feature",
        ),
        Condition(
            "GOLD_CHECK_FAILED",
            "a gold build failed its checks and was not published; readers see the previous version",
            "fix the data, the SQL or the check, then clear the task",
            alert="GOLD_CHECK_FAILED",
        ),
        Condition(
            "REFERENCE_INVALID",
            "the file of a reference table lacks a column, or has a value of another type, or an empty or duplicate "
            "key",
            "fix the file, or its declared columns and key; readers see the previous version",
        ),
        Condition(
            "REFERENCE_UNREADABLE",
            "the file of a reference table is missing, outside its folder, or larger than 16 MiB",
            "store it where `file` or `object` says; readers see the previous version",
        ),
        Condition(
            "MODEL_INPUT_MISSING",
            "a gold table that a model is trained on is not built yet",
            "build it: `deltaworks gold build PIPELINE`",
        ),
        Condition(
            "MODEL_UNREADABLE",
            "the manifest of a model is damaged or of another release",
            "restore it from the storage's versions, run the release that wrote it, or delete its folder",
        ),
        Condition(
            "CHANGES_EXPIRED",
            "changes since a position are no longer in the log, or their files are deleted",
            "read all rows with `since=None`, and read more often",
        ),
        Condition(
            "CHANGES_STARTED_OVER",
            "a position refers to another table, or to one that was recreated or restored since",
            "delete derived data, and read all rows with `since=None`",
        ),
        Condition(
            "INPUT_DAMAGED",
            "an input file is truncated, or its compression is damaged; events landed so far are kept",
            "get the file again and land it; existing objects are skipped",
        ),
        Condition(
            "INPUT_WRONG_FORMAT",
            "a file has another format than the pipeline declares",
            "land files of that format, or fix `source.format`",
        ),
        Condition(
            "INPUT_TOO_LARGE",
            "a Parquet or Avro file, which cannot be split, exceeds the object size that a stream reads",
            "write several files, or raise `source.max_object_bytes`",
        ),
        Condition(
            "FORMAT_UNKNOWN",
            "files of this format, or of several formats, cannot be inferred; they are named",
            "use files of one format, or write `pipeline.yaml` by hand, see docs/reference/pipeline/index.md",
        ),
        Condition(
            "EVENTS_WITHOUT_TIME",
            "no field has a time in most events, and every event needs one",
            "name the field with `--time`, or have producers send one",
        ),
        Condition(
            "SOURCE_HAS_NO_OBJECTS",
            "re-reading needs landed objects, and the pipeline's source has none",
            "use the rows in the tables; fully kept quarantined rows can be replayed",
        ),
        Condition(
            "SOURCE_EXPIRED",
            "the source no longer has records that no batch has read",
            "check what was lost and why the stream was behind; to continue, declare `allow_data_loss: true`",
        ),
        Condition(
            "KAFKA_TOPIC_REPLACED",
            "a topic was deleted and recreated, so its old offsets are invalid",
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
            "merges, updates, deletes or builds rewrite rows of the source table",
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
            "a checkpoint was lost in the middle of a version of the source table",
            "restore it, or start the pipeline over",
        ),
        Condition(
            "TABLE_SCHEMA_DIFFERS",
            "a column has another type than declared",
            "declare the existing type, or rename the column",
        ),
        Condition(
            "SPEC_CHANGE_UNSAFE",
            "an edit of `pipeline.yaml` would damage the tables of a running pipeline; field, old and new value are "
            "named",
            "run `deltaworks pipelines diff PIPELINE` for advice",
            runbook="reference/pipeline/changes.md#changing-a-running-pipeline",
        ),
        Condition(
            "SPEC_RECORD_UNREADABLE",
            "the record of the spec a stream last ran with is damaged or of a later release",
            "run the release that wrote it",
        ),
        Condition(
            "FIELD_UNDECLARED",
            "an event has an undeclared field, and the table declares `evolve: fail`",
            "declare a column for it, or another `evolve`",
        ),
        Condition(
            "RULE_FAILED",
            "an event violates a rule with `on_fail: fail`; nothing of the batch was committed",
            "fix the data or the rule, then restart the stream",
        ),
        Condition("RULE_UNUSABLE", "a rule cannot be evaluated on the data", "fix its check"),
        Condition(
            "TABLE_PARTITIONING_DIFFERS",
            "a table is partitioned differently than declared",
            "declare the existing partitioning, or use a new table",
        ),
        Condition(
            "TABLE_NOT_DECLARED",
            "batches hold rows of a table that is no longer declared",
            "declare it again until it has caught up",
        ),
        Condition(
            "HELD_BATCH_MISSING",
            "the prepared batch with a held table's rows is missing",
            "restore the object, or reprocess that batch for the table",
        ),
        Condition(
            "ROWS_REFUSED",
            "a constraint or NOT NULL of a table rejects rows of a batch",
            "change the constraint, or quarantine such rows with a rule; then resume the table",
        ),
        Condition(
            "PREPARED_FILES_INCOMPATIBLE",
            "files written with an earlier spec cannot be converted to the table's types without loss",
            "restore the type or column they were written with, then resume the table",
        ),
        Condition(
            "HELD_RECORD_UNREADABLE",
            "the record of a held table is damaged",
            "resume the table; the ledger has its held batches",
        ),
        Condition(
            "HELD_RECORD_LOST",
            "the record of a held table was deleted",
            "resume the table; the ledger has its held batches",
        ),
        Condition(
            "COMMIT_REFUSED",
            "delta-rs cannot commit to this table because of an unsupported feature",
            "declare `writer: spark` for the table",
        ),
        Condition(
            "MUTATION_BATCH_UNREADABLE",
            "the record of a mutation batch is damaged, missing or of a later release",
            "restore it, or run the release that wrote it",
        ),
        Condition(
            "MUTATION_BOUNDS_UNAVAILABLE",
            "the table version that an unfinished mutation batch starts from no longer exists",
            "`deltaworks mutations run PIPELINE --everything --no-dry-run`",
        ),
        Condition(
            "NOTIFICATION_OVERLAPS",
            "a bucket already sends the same events to another target, and S3 allows only one",
            "subscribe the queue to that topic, or choose prefixes that do not overlap",
        ),
        Condition(
            "LOG_REPLACED",
            "the file event log was recreated, so a reader's position is invalid",
            "restore the former log, or `deltaworks pipelines start-over`",
        ),
        Condition(
            "SCHEMA_COLUMNS_NEW",
            "new fields were found and `schemaEvolutionMode` is `failOnNewColumns`; they are named as hints",
            "add them to `schemaHints`, or change the mode; restart the query from `.load()`",
        ),
        Condition(
            "SCHEMA_VERSION_UNREADABLE",
            "a version of an inferred schema cannot be read",
            "restore it, or use another `inferredSchemaLocation`",
        ),
        Condition(
            "LOG_DAMAGED",
            "a commit of the file event log is damaged, so the log cannot be read",
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
            "the outcome of a relay's append is unknown, and another append was started",
            "restart the relay; it checks the outcome",
        ),
        Condition(
            "OBJECT_MISSING",
            "an announced object was deleted",
            "its row is in quarantine; ask the producer to send it again if needed",
        ),
        Condition(
            "OBJECT_TOO_LARGE",
            "an object, or its decompressed content, exceeds `source.max_object_bytes`",
            "its row is in quarantine; raise the limit and replay it",
        ),
        Condition(
            "OBJECT_CHANGED",
            "an announced object was replaced before it was read",
            "nothing: the new content has its own file event",
        ),
        Condition(
            "OBJECT_UNREADABLE",
            "an object is archived, or its gzip content is damaged",
            "restore it, or ask the producer to send it again",
        ),
        Condition(
            "KINESIS_POSITION_EXPIRED",
            "records of a shard may have expired unread; shard and range are named",
            "`allowDataLoss` continues with a gap; raise the stream's retention",
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
            "the stream was deleted and recreated under the same name",
            "start a new query with a new `stateLocation`",
        ),
        Condition(
            "KINESIS_STATE_LOST",
            "the state has no record of the batch to repeat or continue from",
            "restore the objects below `stateLocation`, or start a new query at a timestamp",
        ),
        Condition(
            "KINESIS_STATE_OF_ANOTHER_QUERY",
            "a query without a checkpoint found the state of another query",
            "use its checkpoint, `startOffset`, or a separate `stateLocation`",
        ),
        Condition(
            "KINESIS_STATE_VANISHED",
            "an object of the state was deleted",
            "exempt `stateLocation` from lifecycle rules, then run again",
        ),
        Condition(
            "KINESIS_SHARD_UNNUMBERED",
            "a shard id does not have the format of Kinesis",
            "check that the endpoint is Kinesis",
        ),
    ),
)
