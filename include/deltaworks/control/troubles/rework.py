"""Conditions of restoring, reprocessing, recovering and starting over, and of the records these rest on."""

from __future__ import annotations

from typing import Final

from deltaworks.control.troubles.rows import Trouble, raised_as
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError, TransientError

REWORK: Final = (
    *raised_as(
        ConfigError,
        Trouble(
            "VACUUM_TOO_LARGE",
            "VACUUM would delete more files than were approved, or than `--max-files` allows; nothing was deleted",
            "count again; then approve, or give a higher bound",
        ),
        Trouble(
            "START_OVER_UNBOUNDED",
            "no bound on the rows that may be given up",
            "give `--max-rows`; the message has the number",
        ),
        Trouble(
            "START_OVER_TOO_LARGE",
            "more rows would be given up than the bound allows",
            "look at the tables; then give a higher bound",
        ),
        Trouble(
            "RESTORE_POINT",
            "what to go back to is not given, given twice, or malformed",
            "give one of `--to-version`, `--to-time`, `--to-batch`",
        ),
        Trouble(
            "TABLE_NOT_DROPPED",
            "the table to recreate exists",
            "`deltaworks tables check PIPELINE` says what is damaged",
        ),
        Trouble(
            "RESTORE_UNBOUNDED",
            "no bound on the rows whose files may go",
            "look at the dry run, which names `--max-rows`",
        ),
        Trouble(
            "RESTORE_TOO_LARGE",
            "files of more rows would go than the bound allows",
            "look at the dry run again; then give a higher bound",
        ),
        Trouble(
            "REPROCESS_SELECTION",
            "what to read again is not given, given twice, or malformed",
            "give one of `--batches`, `--files`, `--file-list`, `--events`, `--from-start`",
        ),
        Trouble(
            "REPROCESS_EMPTY", "nothing that is complete matches the selection", "look at `deltaworks batches PIPELINE`"
        ),
        Trouble(
            "REPROCESS_SCATTERED",
            "the selection falls into more pieces than one commit can name",
            "select by batches or from the start, or in parts",
        ),
        Trouble(
            "REPROCESS_UNKNOWN",
            "there is no reprocess of this id to resume",
            "begin one by saying what to read again",
        ),
        Trouble(
            "REPROCESS_ID_INVALID",
            "an id no reprocess can have",
            "lower-case letters, digits and underscores, at most 40",
        ),
        Trouble(
            "BATCH_UNKNOWN",
            "the pipeline has no such batch in its present generation",
            "`deltaworks batches PIPELINE` lists the newest",
        ),
        Trouble(
            "QUARANTINE_REASON_UNKNOWN",
            "the reason given to `deltaworks quarantine` is not a reason code",
            "correct the option that is named",
        ),
        Trouble(
            "DATE_INVALID",
            "the date given to `deltaworks quarantine` is not a date",
            "correct the option that is named",
        ),
    ),
    *raised_as(
        ContractError,
        Trouble(
            "APPROVAL_MISSING",
            "no person's answer is on record for what an operation would delete; nothing was done",
            "trigger the operation anew and answer its question",
        ),
        Trouble(
            "APPROVAL_REFUSED",
            "an approval is of the requester, of somebody who may not approve, or of other options; nothing was done",
            "have another person approve; `approvals` of the environment and `approvers` of the pipeline say who may",
        ),
        Trouble(
            "APPROVAL_EXPIRED",
            "an approval was used before, or is older than a day; nothing was done",
            "trigger the operation anew",
        ),
        Trouble(
            "APPROVAL_UNREADABLE",
            "the record of an approval is torn or of another release",
            "trigger the operation anew, and have it approved",
        ),
        Trouble(
            "SWAP_UNVERIFIED",
            "a table does not show what was swapped into it; nothing was removed",
            "put it back to the version before, and keep its shadow to be looked at",
        ),
        Trouble(
            "REPROCESS_OBJECTS_GONE",
            "objects that were read once cannot be read any more; nothing was changed",
            "restore them, or begin one with `--allow-missing`: their rows stay",
        ),
        Trouble(
            "REPROCESS_RECORDS_GONE",
            "records that were read once are neither in their source nor in the archive any more; nothing was changed",
            "select what is there, or begin one with `--allow-missing`: their rows stay; declare `archive`",
        ),
        Trouble(
            "REPROCESS_RECORDS_MISSING",
            "fewer records came of a batch than it had read; nothing was changed",
            "run it again; compaction removes records from the middle of a topic: select other batches",
        ),
        Trouble(
            "REPROCESS_GENERATION_OVER",
            "the pipeline has started over since this reprocess was planned",
            "nothing is left of it; begin a new one",
        ),
        Trouble(
            "REPROCESS_MUTABLE",
            "rows of the table are changed by mutations or announced to others",
            "reprocess other tables, or into a shadow",
        ),
        Trouble(
            "REPROCESS_SPEC_DIFFERS",
            "the stream, or the plan, has another `pipeline.yaml` than this reprocess",
            "restart the stream first, or use another id",
        ),
        Trouble(
            "REPROCESS_STOPPED",
            "the data meets a rule for which the pipeline declares to stop",
            "change the rule, or leave the object out",
        ),
        Trouble(
            "REPROCESS_RECORD_UNREADABLE",
            "a record of a reprocess is torn, or of a later release",
            "run the release that wrote it, or use another id",
        ),
        Trouble(
            "PREPARED_REPLAY_UNREADABLE",
            "a prepared replay is torn or of a later release",
            "run the release that wrote it; it completes the replay",
        ),
        Trouble(
            "QUARANTINE_WITHHELD",
            "no row that a replay selects has kept its event, since fields are private; the source keeps no objects",
            "`deltaworks reprocess` reads again what the source still has",
        ),
        Trouble(
            "QUARANTINE_FEATURES",
            "the quarantine table has a constraint or feature a batch cannot honour",
            "drop it from that table",
        ),
        Trouble(
            "CHECKPOINT_DAMAGED",
            "a file of Spark's checkpoint is empty, cut off or gone; it is named",
            "`deltaworks checkpoint repair PIPELINE --no-dry-run`",
        ),
        Trouble(
            "START_OVER_UNFINISHED",
            "a start over was interrupted, and nothing else begins before its end",
            "`deltaworks pipelines start-over PIPELINE --no-dry-run` continues with it",
        ),
        Trouble(
            "START_OVER_UNREADABLE",
            "the record of a start over, or the spec it names, is torn, gone or of a later release",
            "restore it, or run that release",
        ),
        Trouble(
            "DELTA_SOURCE_ROLLED_BACK",
            "the pipeline of the table that is read was rolled back: rows that were landed from it are gone, and come "
            "again",
            "`deltaworks pipelines start-over` the reader; a reader of the change feed continues",
        ),
        Trouble(
            "ROLLBACK_UNFINISHED",
            "a rollback of a table was interrupted, and nothing else reads again or goes back before its end",
            "`deltaworks restore PIPELINE TABLE --no-dry-run` continues with it",
        ),
        Trouble(
            "ROLLBACK_UNREADABLE",
            "the record of a rollback is torn, or of a later release",
            "restore it, or run the release that wrote it",
        ),
        Trouble(
            "RESTORE_MUTABLE",
            "rows of the table are changed by mutations or announced to others",
            "`deltaworks restore PIPELINE --to-batch BATCH`; or `deltaworks pipelines start-over PIPELINE`",
        ),
        Trouble(
            "ROLLBACK_LOSES_ROWS",
            "files of the version are gone, or the source does not have what landed since; nothing was changed",
            "the message says whether starting over brings all rows again; else go back to a later batch",
        ),
        Trouble(
            "RESTORE_UNSUPPORTED",
            "the table has a feature that asks more of a restore than moving files; it is named",
            "drop the feature, or start the pipeline over",
        ),
        Trouble(
            "RESTORE_COLUMNS_DIFFER",
            "the version has other columns than the table now, and rows of both were to be in it",
            "go back to a later version, or with `--repair none`",
        ),
        Trouble(
            "RESTORE_FILES_GONE",
            "files that the version needs are gone; they are named",
            "go back to a later version, or read the rows again",
        ),
        Trouble(
            "RESTORE_UNPREPARED",
            "the files of batches that were to come back are gone; the batches are named",
            "`--repair source` reads their objects again",
        ),
        Trouble(
            "RESTORE_GENERATION_OVER",
            "the version holds rows that have landed again since, in another generation",
            "go back within the present generation",
        ),
        Trouble(
            "RELAND_NEEDS_SPARK",
            "rows of this table cannot be read again without Spark",
            "`deltaworks reprocess`, which the message writes out",
        ),
        Trouble(
            "RELAND_OBJECTS_GONE",
            "objects that held lost rows are gone too; they are named",
            "restore them, or `--allow-missing`, which gives their rows up",
        ),
        Trouble(
            "TABLE_DROPPED",
            "a table is gone that the ledger knows batches of; the stream holds it",
            "`deltaworks recover table PIPELINE TABLE`",
        ),
        Trouble(
            "TABLE_LOG_LOST",
            "the log of a table has lost its very beginning",
            "restore `_delta_log`, or recreate the table with `deltaworks recover table`",
        ),
        Trouble(
            "TABLE_LOG_MISSING",
            "there is no Delta log where the table should be",
            "restore its folder from the storage's versions",
        ),
        Trouble(
            "TABLE_LOG_GAP",
            "a commit in the middle of a table's log is missing; its version is named",
            "`deltaworks recover log PIPELINE TABLE`",
        ),
        Trouble(
            "TABLE_VERSION_UNAVAILABLE",
            "the log of a table does not reach back to a version or a time, or it is yet to come",
            "choose the nearest one, which is named",
        ),
        Trouble(
            "TABLE_VERSION_VACUUMED",
            "VACUUM has removed files of a version that a query asks for",
            "ask for the next whole version, which is named; `maintenance.time_travel_hours` keeps files longer",
        ),
        Trouble(
            "LEDGER_BEHIND",
            "the ledger has lost batches that were complete",
            "restore it, or `deltaworks checkpoint repair PIPELINE --no-dry-run`",
        ),
        Trouble(
            "LEDGER_NOT_REBUILDABLE",
            "prepared batches are missing between those the ledger lacks",
            "restore the ledger or the prepared batches",
        ),
        Trouble(
            "LEDGER_WITHOUT_OFFSET",
            "a new checkpoint is needed, and the ledger does not say where its last batch ended",
            "restore the checkpoint's folder or that row",
        ),
        Trouble(
            "LEDGER_WITHOUT_TIME",
            "a batch that is to be read again has no prepared object, and the ledger does not say when it was prepared",
            "restore that object, or that row of the ledger",
        ),
        Trouble(
            "GENERATIONS_UNREADABLE",
            "`generations.json` is torn",
            "restore it, or remove it: it is recreated from the ledger",
        ),
        Trouble(
            "STREAM_SUMMARY_UNREADABLE",
            "`recent.json` or `hours.json` is torn or of another release",
            "nothing: nothing decides by it, and the stream writes it anew",
        ),
        Trouble(
            "PREPARED_BATCH_UNREADABLE",
            "a prepared batch is torn or of a later release",
            "run the release that wrote it, or move the object away",
        ),
        Trouble("PREPARED_BATCH_VANISHED", "a prepared batch was deleted while it was used", "start the stream again"),
    ),
    *raised_as(
        ConcurrencyError,
        Trouble(
            "START_OVER_TABLE_HELD",
            "batches hold rows back that a table does not have yet",
            "start the stream, `deltaworks tables resume`, stop it",
        ),
        Trouble(
            "RESTORE_FOLLOWED",
            "a stream that follows a table through Delta runs, and would land rows twice that land there again",
            "`deltaworks stop` it first; it starts over after this",
        ),
        Trouble(
            "REPROCESS_TABLE_HELD",
            "a table waits for rows of batches that are to be read again",
            "let it catch up: `deltaworks tables resume`",
        ),
        Trouble("GENERATION_CONTENDED", "two processes changed the checkpoint record at once", "run again"),
    ),
    *raised_as(
        TransientError,
        Trouble(
            "SWAP_COPY_DAMAGED",
            "a file that was copied into a table is not whole; nothing was committed, or the copy is still needed",
            "run it again: it is copied again",
        ),
    ),
)
