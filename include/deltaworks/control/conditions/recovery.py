"""Conditions of restoring, reprocessing, recovering and starting over, and of the records these rest on."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition, conditions_of
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError, TransientError

RECOVERY: Final = (
    *conditions_of(
        ConfigError,
        Condition(
            "VACUUM_TOO_LARGE",
            "VACUUM would delete more files than were approved, or than `--max-files` allows; nothing was deleted",
            "count again; then approve, or give a higher bound",
        ),
        Condition(
            "START_OVER_UNBOUNDED",
            "no bound on the rows that may be given up",
            "give `--max-rows`; the message has the number",
        ),
        Condition(
            "START_OVER_TOO_LARGE",
            "more rows would be given up than the bound allows",
            "look at the tables; then give a higher bound",
        ),
        Condition(
            "RESTORE_POINT_INVALID",
            "what to go back to is not given, given twice, or malformed",
            "give one of `--to-version`, `--to-time`, `--to-batch`",
        ),
        Condition(
            "TABLE_NOT_DROPPED",
            "the table to recreate exists",
            "`deltaworks tables check PIPELINE` says what is damaged",
        ),
        Condition(
            "RESTORE_UNBOUNDED",
            "no bound on the rows whose files may go",
            "look at the dry run, which names `--max-rows`",
        ),
        Condition(
            "RESTORE_TOO_LARGE",
            "files of more rows would go than the bound allows",
            "look at the dry run again; then give a higher bound",
        ),
        Condition(
            "REPROCESS_SELECTION_INVALID",
            "what to read again is not given, given twice, or malformed",
            "give one of `--batches`, `--files`, `--file-list`, `--events`, `--from-start`",
        ),
        Condition(
            "REPROCESS_EMPTY", "nothing that is complete matches the selection", "look at `deltaworks batches PIPELINE`"
        ),
        Condition(
            "REPROCESS_TOO_FRAGMENTED",
            "the selection falls into more pieces than one commit can name",
            "select by batches or from the start, or in parts",
        ),
        Condition(
            "REPROCESS_UNKNOWN",
            "there is no reprocess of this id to resume",
            "begin one by saying what to read again",
        ),
        Condition(
            "REPROCESS_ID_INVALID",
            "an id no reprocess can have",
            "lower-case letters, digits and underscores, at most 40",
        ),
        Condition(
            "BATCH_UNKNOWN",
            "the pipeline has no such batch in its present generation",
            "`deltaworks batches PIPELINE` lists the newest",
        ),
        Condition(
            "QUARANTINE_REASON_UNKNOWN",
            "the reason given to `deltaworks quarantine` is not a reason code",
            "correct the option that is named",
        ),
        Condition(
            "DATE_INVALID",
            "the date given to `deltaworks quarantine` is not a date",
            "correct the option that is named",
        ),
    ),
    *conditions_of(
        ContractError,
        Condition(
            "APPROVAL_MISSING",
            "no person's answer is on record for what an operation would delete; nothing was done",
            "trigger the operation anew and answer its question",
        ),
        Condition(
            "APPROVAL_REFUSED",
            "an approval is of the requester, of somebody who may not approve, or of other options; nothing was done",
            "have another person approve; `approvals` of the environment and `approvers` of the pipeline say who may",
        ),
        Condition(
            "APPROVAL_EXPIRED",
            "an approval was used before, or is older than a day; nothing was done",
            "trigger the operation anew",
        ),
        Condition(
            "APPROVAL_UNREADABLE",
            "the record of an approval is torn or of another release",
            "trigger the operation anew, and have it approved",
        ),
        Condition(
            "SWAP_UNVERIFIED",
            "a table does not show what was swapped into it; nothing was removed",
            "put it back to the version before, and keep its shadow to be looked at",
        ),
        Condition(
            "REPROCESS_OBJECTS_MISSING",
            "objects that were read once cannot be read any more; nothing was changed",
            "restore them, or begin one with `--allow-missing`: their rows stay",
        ),
        Condition(
            "REPROCESS_RECORDS_EXPIRED",
            "records that were read once are neither in their source nor in the archive any more; nothing was changed",
            "select what is there, or begin one with `--allow-missing`: their rows stay; declare `archive`",
        ),
        Condition(
            "REPROCESS_RECORDS_MISSING",
            "fewer records came of a batch than it had read; nothing was changed",
            "run it again; compaction removes records from the middle of a topic: select other batches",
        ),
        Condition(
            "REPROCESS_GENERATION_ENDED",
            "the pipeline has started over since this reprocess was planned",
            "nothing is left of it; begin a new one",
        ),
        Condition(
            "REPROCESS_MUTABLE",
            "rows of the table are changed by mutations or announced to others",
            "reprocess other tables, or into a shadow",
        ),
        Condition(
            "REPROCESS_SPEC_DIFFERS",
            "the stream, or the plan, has another `pipeline.yaml` than this reprocess",
            "restart the stream first, or use another id",
        ),
        Condition(
            "REPROCESS_STOPPED",
            "the data meets a rule for which the pipeline declares to stop",
            "change the rule, or leave the object out",
        ),
        Condition(
            "REPROCESS_RECORD_UNREADABLE",
            "a record of a reprocess is torn, or of a later release",
            "run the release that wrote it, or use another id",
        ),
        Condition(
            "PREPARED_REPLAY_UNREADABLE",
            "a prepared replay is torn or of a later release",
            "run the release that wrote it; it completes the replay",
        ),
        Condition(
            "QUARANTINE_EVENTS_NOT_KEPT",
            "no row that a replay selects has kept its event, since fields are private; the source keeps no objects",
            "`deltaworks reprocess` reads again what the source still has",
        ),
        Condition(
            "QUARANTINE_FEATURES_UNSUPPORTED",
            "the quarantine table has a constraint or feature a batch cannot honour",
            "drop it from that table",
        ),
        Condition(
            "CHECKPOINT_DAMAGED",
            "a file of Spark's checkpoint is empty, cut off or gone; it is named",
            "`deltaworks checkpoint repair PIPELINE --no-dry-run`",
        ),
        Condition(
            "START_OVER_UNFINISHED",
            "a start over was interrupted, and nothing else begins before its end",
            "`deltaworks pipelines start-over PIPELINE --no-dry-run` continues with it",
        ),
        Condition(
            "START_OVER_UNREADABLE",
            "the record of a start over, or the spec it names, is torn, gone or of a later release",
            "restore it, or run that release",
        ),
        Condition(
            "DELTA_SOURCE_ROLLED_BACK",
            "the pipeline of the table that is read was rolled back: rows that were landed from it are gone, and come "
            "again",
            "`deltaworks pipelines start-over` the reader; a reader of the change feed continues",
        ),
        Condition(
            "ROLLBACK_UNFINISHED",
            "a rollback of a table was interrupted, and nothing else reads again or goes back before its end",
            "`deltaworks restore PIPELINE TABLE --no-dry-run` continues with it",
        ),
        Condition(
            "ROLLBACK_UNREADABLE",
            "the record of a rollback is torn, or of a later release",
            "restore it, or run the release that wrote it",
        ),
        Condition(
            "RESTORE_MUTABLE",
            "rows of the table are changed by mutations or announced to others",
            "`deltaworks restore PIPELINE --to-batch BATCH`; or `deltaworks pipelines start-over PIPELINE`",
        ),
        Condition(
            "ROLLBACK_LOSES_ROWS",
            "files of the version are gone, or the source does not have what landed since; nothing was changed",
            "the message says whether starting over brings all rows again; else go back to a later batch",
        ),
        Condition(
            "RESTORE_UNSUPPORTED",
            "the table has a feature that asks more of a restore than moving files; it is named",
            "drop the feature, or start the pipeline over",
        ),
        Condition(
            "RESTORE_COLUMNS_DIFFER",
            "the version has other columns than the table now, and rows of both were to be in it",
            "go back to a later version, or with `--repair none`",
        ),
        Condition(
            "RESTORE_FILES_MISSING",
            "files that the version needs are gone; they are named",
            "go back to a later version, or read the rows again",
        ),
        Condition(
            "RESTORE_UNPREPARED",
            "the files of batches that were to come back are gone; the batches are named",
            "`--repair source` reads their objects again",
        ),
        Condition(
            "RESTORE_GENERATION_ENDED",
            "the version holds rows that have landed again since, in another generation",
            "go back within the present generation",
        ),
        Condition(
            "RELAND_NEEDS_SPARK",
            "rows of this table cannot be read again without Spark",
            "`deltaworks reprocess`, which the message writes out",
        ),
        Condition(
            "RELAND_OBJECTS_MISSING",
            "objects that held lost rows are gone too; they are named",
            "restore them, or `--allow-missing`, which gives their rows up",
        ),
        Condition(
            "TABLE_DROPPED",
            "a table is gone that the ledger knows batches of; the stream holds it",
            "`deltaworks recover table PIPELINE TABLE`",
        ),
        Condition(
            "TABLE_LOG_LOST",
            "the log of a table has lost its very beginning",
            "restore `_delta_log`, or recreate the table with `deltaworks recover table`",
        ),
        Condition(
            "TABLE_LOG_MISSING",
            "there is no Delta log where the table should be",
            "restore its folder from the storage's versions",
        ),
        Condition(
            "TABLE_LOG_GAP",
            "a commit in the middle of a table's log is missing; its version is named",
            "`deltaworks recover log PIPELINE TABLE`",
        ),
        Condition(
            "TABLE_VERSION_UNAVAILABLE",
            "the log of a table does not reach back to a version or a time, or it is yet to come",
            "choose the nearest one, which is named",
        ),
        Condition(
            "TABLE_VERSION_VACUUMED",
            "VACUUM has removed files of a version that a query asks for",
            "ask for the next whole version, which is named; `maintenance.time_travel_hours` keeps files longer",
        ),
        Condition(
            "LEDGER_BEHIND",
            "the ledger has lost batches that were complete",
            "restore it, or `deltaworks checkpoint repair PIPELINE --no-dry-run`",
        ),
        Condition(
            "LEDGER_NOT_REBUILDABLE",
            "prepared batches are missing between those the ledger lacks",
            "restore the ledger or the prepared batches",
        ),
        Condition(
            "LEDGER_WITHOUT_OFFSET",
            "a new checkpoint is needed, and the ledger does not say where its last batch ended",
            "restore the checkpoint's folder or that row",
        ),
        Condition(
            "LEDGER_WITHOUT_TIME",
            "a batch that is to be read again has no prepared object, and the ledger does not say when it was prepared",
            "restore that object, or that row of the ledger",
        ),
        Condition(
            "GENERATIONS_UNREADABLE",
            "`generations.json` is torn",
            "restore it, or remove it: it is recreated from the ledger",
        ),
        Condition(
            "STREAM_SUMMARY_UNREADABLE",
            "`recent.json` or `hours.json` is torn or of another release",
            "nothing: nothing decides by it, and the stream writes it anew",
        ),
        Condition(
            "PREPARED_BATCH_UNREADABLE",
            "a prepared batch is torn or of a later release",
            "run the release that wrote it, or move the object away",
        ),
        Condition(
            "PREPARED_BATCH_VANISHED", "a prepared batch was deleted while it was used", "start the stream again"
        ),
    ),
    *conditions_of(
        ConcurrencyError,
        Condition(
            "START_OVER_TABLE_HELD",
            "batches hold rows back that a table does not have yet",
            "start the stream, `deltaworks tables resume`, stop it",
        ),
        Condition(
            "RESTORE_HAS_FOLLOWER",
            "a stream that follows a table through Delta runs, and would land rows twice that land there again",
            "`deltaworks stop` it first; it starts over after this",
        ),
        Condition(
            "REPROCESS_TABLE_HELD",
            "a table waits for rows of batches that are to be read again",
            "let it catch up: `deltaworks tables resume`",
        ),
        Condition("GENERATION_CONTENDED", "two processes changed the checkpoint record at once", "run again"),
    ),
    *conditions_of(
        TransientError,
        Condition(
            "SWAP_COPY_DAMAGED",
            "a file that was copied into a table is not whole; nothing was committed, or the copy is still needed",
            "run it again: it is copied again",
        ),
    ),
)
