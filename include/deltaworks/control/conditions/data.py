"""Conditions of data, sources and tables that are not what was promised."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition, conditions_of
from deltaworks.errors import ContractError

DATA: Final = (
    *conditions_of(
        ContractError,
        Condition(
            "VIEW_UNREADABLE",
            "the SQL of a view that is announced does not run",
            "ask for the view by `deltaworks sql`, which says the same, and mend its file",
        ),
        Condition(
            "RULE_BROKEN",
            "the SQL of a rule under `alerts` fails, takes too long, or its answer lacks a column",
            "mend the file that is named: `deltaworks pipelines check` and `deltaworks alerts backtest` ask it too",
            runbook="how-to/write-rules.md#a-rule-is-broken",
        ),
        Condition(
            "RULE_STATE_UNREADABLE",
            "what is on record of a rule is torn, or of another release",
            "delete the object that is named: the rule is judged from then on",
        ),
        Condition(
            "SUMMARY_UNREADABLE",
            "a summary that pages show is torn, or of another release; it counts as none",
            "nothing: whoever writes it next writes it anew",
        ),
        Condition(
            "ANNOTATION_UNREADABLE",
            "a note on a pipeline is torn, or of another release",
            "delete the object that is named",
        ),
        Condition(
            "ANNOUNCEMENT_TOO_LARGE",
            "the answer of a view is more than SNS takes as one message",
            "aggregate further, name fewer columns, or LIMIT the rows",
        ),
        Condition(
            "GOLD_SWAP_UNSUPPORTED",
            "the gold table has a feature that swapping files in would break; it is named",
            "build it with `full`, or drop the feature",
        ),
        Condition(
            "GOLD_CHECK_FAILED",
            "answers break their checks, and were not published; readers have those of before",
            "mend the data, the SQL or the check, then clear the task",
            alert="GOLD_CHECK_FAILED",
        ),
        Condition(
            "REFERENCE_INVALID",
            "the file of a reference table lacks a column, or has a value of another type, an empty key or one twice",
            "mend the file, or the columns and the key that are declared; readers have the table of before",
        ),
        Condition(
            "REFERENCE_UNREADABLE",
            "the file of a reference table is missing, outside of its folder, or larger than 16 MiB",
            "put it where `file` or `object` says; readers have the table of before",
        ),
        Condition(
            "MODEL_INPUT_MISSING",
            "a gold table that a model is made from is not built yet",
            "build it: `deltaworks gold build PIPELINE`",
        ),
        Condition(
            "MODEL_UNREADABLE",
            "the manifest of a model is torn, or of another release",
            "restore it from the storage's versions, run the release that wrote it, or delete its folder",
        ),
        Condition(
            "CHANGES_EXPIRED",
            "what changed since a position is no longer in the log, or its files are gone",
            "read everything again with `since=None`, and more often",
        ),
        Condition(
            "CHANGES_STARTED_OVER",
            "a position is of another table, or of one that was recreated or restored since",
            "empty what was derived, and read everything again with `since=None`",
        ),
        Condition(
            "INPUT_DAMAGED",
            "a file to land or to infer from is cut off, or damaged where it is compressed; what landed of it stays",
            "get it again, and land the whole file: what is there already is left out",
        ),
        Condition(
            "INPUT_WRONG_FORMAT",
            "a file begins as another format does than the one the pipeline declares",
            "land files of that format, or mend `source.format`",
        ),
        Condition(
            "INPUT_TOO_LARGE",
            "a file of Parquet or Avro, which is never cut, is larger than an object that a stream reads",
            "write several files, or raise `source.max_object_bytes`",
        ),
        Condition(
            "FORMAT_UNKNOWN",
            "nothing can be inferred from files of this form, or files of several forms were given; they are named",
            "give files of one form, or write `pipeline.yaml` by hand: docs/reference/pipeline.md",
        ),
        Condition(
            "EVENTS_WITHOUT_TIME",
            "in no field most events have a time, and every event needs one",
            "name the field with `--time`, or have producers send one",
        ),
        Condition(
            "SOURCE_HAS_NO_OBJECTS",
            "something reads landed objects again, and the pipeline's source keeps none",
            "what has landed is in the tables; rows kept whole in quarantine can be replayed",
        ),
        Condition(
            "SOURCE_EXPIRED",
            "records no batch has read are not in the source any more",
            "see what was lost and why the stream was behind; to continue after it declare `allow_data_loss: true`",
        ),
        Condition(
            "KAFKA_TOPIC_REPLACED",
            "a topic was deleted and recreated: offsets read so far mean nothing there",
            "`deltaworks pipelines start-over`, or another name for the new topic",
        ),
        Condition(
            "RECORD_SEQ_EXHAUSTED",
            "a partition, shard or record has no number left in `_seq`",
            "read it in a pipeline of its own",
        ),
        Condition(
            "DELTA_SOURCE_MISSING", "the table a pipeline reads is not there", "start the pipeline that writes it"
        ),
        Condition(
            "DELTA_SOURCE_REWRITTEN",
            "rows of the table that is read are rewritten by merges, updates, deletes or builds",
            "read the table it is made of, or `change_feed: true`, or `skip_change_commits: true`",
        ),
        Condition(
            "DELTA_SOURCE_REPLACED",
            "the table that was read is gone, and another one is in its place",
            "`deltaworks pipelines start-over`, or put the former table back",
        ),
        Condition(
            "DELTA_SOURCE_WITHOUT_CHANGES",
            "`change_feed: true`, and the table keeps no feed",
            "set `delta.enableChangeDataFeed` on it",
        ),
        Condition(
            "DELTA_SOURCE_MID_VERSION",
            "a checkpoint was lost in the middle of a version of the table that is read",
            "restore it, or start the pipeline over",
        ),
        Condition(
            "TABLE_SCHEMA_DIFFERS",
            "a column on disk has another type than declared",
            "declare the type the table has, or rename the column",
        ),
        Condition(
            "SPEC_CHANGE_UNSAFE",
            "an edit of `pipeline.yaml` would damage the tables of a running pipeline; field, old and new are named",
            "`deltaworks pipelines diff PIPELINE` says what to do",
            runbook="reference/pipeline.md#changing-a-running-pipeline",
        ),
        Condition(
            "SPEC_RECORD_UNREADABLE",
            "the record of the spec a stream last ran with is torn, or of a later release",
            "run the release that wrote it",
        ),
        Condition(
            "FIELD_UNDECLARED",
            "an event has a field no column takes, and the table declares `evolve: fail`",
            "declare a column for it, or another `evolve`",
        ),
        Condition(
            "RULE_FAILED",
            "an event fails a rule with `on_fail: fail`; nothing of the batch was committed",
            "mend the data or the rule, then start the stream again",
        ),
        Condition("RULE_UNUSABLE", "a rule cannot be evaluated on the data at all", "mend its check"),
        Condition(
            "TABLE_PARTITIONING_DIFFERS",
            "a table is partitioned otherwise on disk than declared",
            "declare the partitioning it has; another one needs a new table",
        ),
        Condition(
            "TABLE_NOT_DECLARED",
            "batches hold rows of a table that is not declared any more",
            "declare it again until it has caught up",
        ),
        Condition(
            "HELD_BATCH_MISSING",
            "the prepared batch that holds a held table's rows is gone",
            "restore the object, or reprocess that batch for the table",
        ),
        Condition(
            "ROWS_REFUSED",
            "a constraint or a NOT NULL of a table refuses rows of a batch",
            "change the constraint, or have a rule quarantine such rows; then resume the table",
        ),
        Condition(
            "PREPARED_FILES_INCOMPATIBLE",
            "files written by another declaration do not convert exactly to the table's types",
            "give the table the type or column they were written with, then resume it",
        ),
        Condition(
            "HELD_RECORD_UNREADABLE",
            "the record of a held table is torn",
            "resume the table: the ledger knows what was held back",
        ),
        Condition(
            "HELD_RECORD_LOST",
            "the record of a held table was removed",
            "resume the table: the ledger knows what was held back",
        ),
        Condition(
            "COMMIT_REFUSED",
            "delta-rs cannot commit to this table (a feature it lacks)",
            "declare `writer: spark` for the table",
        ),
        Condition(
            "MUTATION_BATCH_UNREADABLE",
            "the record of a mutation batch is torn, gone or of a later release",
            "restore it, or run the release that wrote it",
        ),
        Condition(
            "MUTATION_BOUNDS_UNAVAILABLE",
            "a mutation batch was left unfinished until the version of the requests it covers was removed",
            "`deltaworks mutations run PIPELINE --everything --no-dry-run`",
        ),
        Condition(
            "NOTIFICATION_OVERLAPS",
            "a bucket announces the same objects to someone already, and S3 takes one of both",
            "subscribe the queue to that topic, or choose prefixes that do not overlap",
        ),
        Condition(
            "LOG_REPLACED",
            "the file event log was recreated, and a reader's position is a number of the former one",
            "put the former log back, or `deltaworks pipelines start-over`",
        ),
        Condition(
            "SCHEMA_COLUMNS_NEW",
            "fields no column takes where `schemaEvolutionMode` is `failOnNewColumns`; they are named as hints",
            "add them to `schemaHints`, or change the mode; start the query again from `.load()` on",
        ),
        Condition(
            "SCHEMA_VERSION_UNREADABLE",
            "an object among the versions of an inferred schema cannot be read",
            "put it back, or give another `inferredSchemaLocation`",
        ),
        Condition(
            "LOG_DAMAGED",
            "a commit in the file event log is no commit: nobody can read the log",
            "stop the relay, put its `_delta_log` back as it was, restart what reads it, start the relay",
        ),
        Condition(
            "LOG_ROLLED_BACK",
            "the file event log ends before what a reader has read of it",
            "stop the relay and put the log back as it was, or `deltaworks pipelines start-over`",
        ),
        Condition(
            "LOG_WITHOUT_STATISTICS",
            "someone else than the relay wrote the file event log",
            "restore the log to the version before",
        ),
        Condition(
            "APPEND_OUTCOME_UNKNOWN",
            "a relay's append may or may not have landed, and another was begun",
            "start the relay again; it finds out",
        ),
        Condition(
            "OBJECT_MISSING",
            "an announced object is gone",
            "its row is in quarantine; have it sent again if it is needed",
        ),
        Condition(
            "OBJECT_TOO_LARGE",
            "an object, or what it is decompressed to, is above `source.max_object_bytes`",
            "its row is in quarantine; raise the limit and replay it",
        ),
        Condition(
            "OBJECT_CHANGED",
            "an announced object was replaced before it was read",
            "none: the new content has its own file event",
        ),
        Condition(
            "OBJECT_UNREADABLE",
            "an object is archived, or its gzip content is damaged",
            "restore it or have it sent again",
        ),
        Condition(
            "KINESIS_POSITION_EXPIRED",
            "records of a shard may have expired before they were read; shard and range are named",
            "`allowDataLoss` continues with a gap; raise the stream's retention",
        ),
        Condition(
            "KINESIS_REPLAY_DIFFERS",
            "a batch read again is not what it was",
            "check that `deaggregate` is unchanged, and that the state belongs to this query alone",
        ),
        Condition(
            "KINESIS_POSITION_INVALID",
            "a shard does not know the position the query is to continue from",
            "it is another stream: start a new query",
        ),
        Condition(
            "KINESIS_STREAM_REPLACED",
            "the stream was deleted and recreated under the same name",
            "start a new query with a new `stateLocation`",
        ),
        Condition(
            "KINESIS_STATE_LOST",
            "the state does not know the batch that is to be read or continued from",
            "restore the objects below `stateLocation`, or start a new query at a timestamp",
        ),
        Condition(
            "KINESIS_STATE_OF_ANOTHER_QUERY",
            "a query without a checkpoint met the state of one that has continued",
            "use its checkpoint, `startOffset`, or a `stateLocation` of its own",
        ),
        Condition(
            "KINESIS_STATE_VANISHED",
            "an object of the state was there and is gone",
            "exempt `stateLocation` from lifecycle rules, then run again",
        ),
        Condition(
            "KINESIS_SHARD_UNNUMBERED",
            "a shard's id is not of the form Kinesis gives",
            "check that the endpoint leads to Kinesis",
        ),
    ),
)
