"""Conditions of restore, reprocess, recovery and start-over, and of their records."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition, conditions_of
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError, TransientError

RECOVERY: Final = (
    *conditions_of(
        ConfigError,
        Condition(
            "VACUUM_TOO_LARGE",
            "VACUUM would delete more files than approved or `--max-files`; nothing was deleted",
            "repeat the dry run; then approve, or raise the limit",
        ),
        Condition(
            "START_OVER_UNBOUNDED",
            "the start-over has no limit on lost rows",
            "pass `--max-rows` with the number in the message",
        ),
        Condition(
            "START_OVER_TOO_LARGE",
            "the start-over would lose more rows than its limit",
            "check the tables; then raise the limit",
        ),
        Condition(
            "RESTORE_POINT_INVALID",
            "the version is missing, given twice, or malformed",
            "pass one of `--to-version`, `--to-time`, `--to-batch`",
        ),
        Condition(
            "TABLE_NOT_DROPPED",
            "the table to recreate exists",
            "`deltaworks tables check PIPELINE` lists damage",
        ),
        Condition(
            "RESTORE_UNBOUNDED",
            "the restore has no limit on removed rows",
            "pass the `--max-rows` of the dry run",
        ),
        Condition(
            "RESTORE_TOO_LARGE",
            "the restore would remove more rows than its limit",
            "check the dry run again; then raise the limit",
        ),
        Condition(
            "REPROCESS_SELECTION_INVALID",
            "the selected input is missing, given twice, or malformed",
            "pass one of `--batches`, `--files`, `--file-list`, `--events`, `--from-start`",
        ),
        Condition("REPROCESS_EMPTY", "no completed batch matches the selection", "check `deltaworks batches PIPELINE`"),
        Condition(
            "REPROCESS_TOO_FRAGMENTED",
            "the selection has too many ranges for one commit",
            "select by batches or from the start, or in parts",
        ),
        Condition(
            "REPROCESS_UNKNOWN",
            "there is no reprocess of this id to resume",
            "start one by selecting the input to re-read",
        ),
        Condition(
            "REPROCESS_ID_INVALID",
            "the reprocess id is invalid",
            "use lower-case letters, digits and underscores, at most 40",
        ),
        Condition(
            "BATCH_UNKNOWN",
            "the current generation has no such batch",
            "`deltaworks batches PIPELINE` lists the newest",
        ),
        Condition(
            "QUARANTINE_REASON_UNKNOWN",
            "a reason is not a reason code",
            "correct the named option",
        ),
        Condition(
            "DATE_INVALID",
            "a date given to a command is not valid",
            "correct the named option",
        ),
    ),
    *conditions_of(
        ContractError,
        Condition(
            "APPROVAL_MISSING",
            "a deletion was not approved; nothing was done",
            "trigger it again and answer its question",
        ),
        Condition(
            "APPROVAL_REFUSED",
            "an approval is by the requester or an unauthorised person, or for other options",
            "have another person approve; see `approvals` and `approvers`",
        ),
        Condition(
            "APPROVAL_EXPIRED",
            "an approval was already used, or is older than a day; nothing was done",
            "trigger it again",
        ),
        Condition(
            "APPROVAL_UNREADABLE",
            "an approval is damaged or of another release",
            "trigger the operation again, and have it approved",
        ),
        Condition(
            "SWAP_UNVERIFIED",
            "a table does not show swapped-in files; nothing was deleted",
            "restore the previous version, and keep the shadow for analysis",
        ),
        Condition(
            "REPROCESS_OBJECTS_MISSING",
            "objects can no longer be read; nothing was changed",
            "restore them, or use `--allow-missing`",
        ),
        Condition(
            "REPROCESS_RECORDS_EXPIRED",
            "records are neither in the source nor in the archive; nothing was changed",
            "select available records, or use `--allow-missing`; declare `archive`",
        ),
        Condition(
            "REPROCESS_RECORDS_MISSING",
            "a batch returned fewer records than before; nothing was changed",
            "run it again; if the topic is compacted, select other batches",
        ),
        Condition(
            "REPROCESS_GENERATION_ENDED",
            "the pipeline has started over since the plan",
            "start a new one",
        ),
        Condition(
            "REPROCESS_MUTABLE",
            "the table's rows are mutable or announced",
            "reprocess other tables, or into a shadow",
        ),
        Condition(
            "REPROCESS_SPEC_DIFFERS",
            "stream or plan has another `pipeline.yaml` than this reprocess",
            "restart the stream first, or use another id",
        ),
        Condition(
            "REPROCESS_STOPPED",
            "the data violates a rule with `on_fail: fail`",
            "change the rule, or exclude the object",
        ),
        Condition(
            "REPROCESS_RECORD_UNREADABLE",
            "a reprocess record is damaged, or of a later release",
            "run the release that wrote it, or use another id",
        ),
        Condition(
            "PREPARED_REPLAY_UNREADABLE",
            "a prepared replay is damaged or of a later release",
            "run the release that wrote it; it completes the replay",
        ),
        Condition(
            "QUARANTINE_EVENTS_NOT_KEPT",
            "the rows lack their events (private fields), and the source has no objects",
            "`deltaworks reprocess` re-reads remaining records",
        ),
        Condition(
            "QUARANTINE_FEATURES_UNSUPPORTED",
            "the quarantine table has an unsupported constraint or feature",
            "drop it from that table",
        ),
        Condition(
            "CHECKPOINT_DAMAGED",
            "the named checkpoint file is empty, truncated or missing",
            "`deltaworks checkpoint repair PIPELINE --no-dry-run`",
        ),
        Condition(
            "START_OVER_UNFINISHED",
            "a start-over was interrupted and blocks other operations",
            "`deltaworks pipelines start-over PIPELINE --no-dry-run` continues it",
        ),
        Condition(
            "START_OVER_UNREADABLE",
            "a start-over's record or spec is damaged, missing or of a later release",
            "restore it, or run that release",
        ),
        Condition(
            "DELTA_SOURCE_ROLLED_BACK",
            "the source pipeline was rolled back and writes rows again",
            "`deltaworks pipelines start-over` the reader; change feed readers continue",
        ),
        Condition(
            "ROLLBACK_UNFINISHED",
            "a table's rollback was interrupted and blocks other rollbacks and re-reads",
            "`deltaworks restore PIPELINE TABLE --no-dry-run` continues it",
        ),
        Condition(
            "ROLLBACK_UNREADABLE",
            "a rollback's record is damaged, or of a later release",
            "restore it, or run the release that wrote it",
        ),
        Condition(
            "RESTORE_MUTABLE",
            "the table's rows are mutable or announced",
            "`deltaworks restore PIPELINE --to-batch BATCH`; or `deltaworks pipelines start-over PIPELINE`",
        ),
        Condition(
            "ROLLBACK_LOSES_ROWS",
            "files of the version are missing, or the source lacks later input",
            "the message says whether a start-over restores all rows; otherwise choose a later batch",
        ),
        Condition(
            "RESTORE_UNSUPPORTED",
            "the table has the named unsupported feature",
            "drop the feature, or start the pipeline over",
        ),
        Condition(
            "RESTORE_COLUMNS_DIFFER",
            "the restored version has other columns than the table",
            "choose a later version, or use `--repair none`",
        ),
        Condition(
            "RESTORE_FILES_MISSING",
            "the named files of the version are missing",
            "choose a later version, or re-read the rows",
        ),
        Condition(
            "RESTORE_UNPREPARED",
            "prepared files of the named batches are missing",
            "`--repair source` re-reads their objects",
        ),
        Condition(
            "RESTORE_GENERATION_ENDED",
            "the version has rows that another generation rewrote",
            "choose a version of the current generation",
        ),
        Condition(
            "RELAND_NEEDS_SPARK",
            "rows of this table cannot be re-read without Spark",
            "run the `deltaworks reprocess` command in the message",
        ),
        Condition(
            "RELAND_OBJECTS_MISSING",
            "the named objects of lost rows are missing",
            "restore them, or use `--allow-missing`",
        ),
        Condition(
            "TABLE_DROPPED",
            "a table with ledger batches is missing; the stream holds it",
            "`deltaworks recover table PIPELINE TABLE`",
        ),
        Condition(
            "TABLE_LOG_LOST",
            "the beginning of a table's log is missing",
            "restore `_delta_log`, or recreate the table with `deltaworks recover table`",
        ),
        Condition(
            "TABLE_LOG_MISSING",
            "the table has no Delta log",
            "restore its folder from the storage's versions",
        ),
        Condition(
            "TABLE_LOG_GAP",
            "a named commit within a table's log is missing",
            "`deltaworks recover log PIPELINE TABLE`",
        ),
        Condition(
            "TABLE_VERSION_UNAVAILABLE",
            "the log does not contain a version or time",
            "choose the named nearest one",
        ),
        Condition(
            "TABLE_VERSION_VACUUMED",
            "VACUUM deleted files of the requested version",
            "use the named next complete version; `maintenance.time_travel_hours` keeps files longer",
        ),
        Condition(
            "LEDGER_BEHIND",
            "the ledger has lost completed batches",
            "restore it, or `deltaworks checkpoint repair PIPELINE --no-dry-run`",
        ),
        Condition(
            "LEDGER_NOT_REBUILDABLE",
            "prepared batches for rebuilding the ledger are missing",
            "restore the ledger or the prepared batches",
        ),
        Condition(
            "LEDGER_WITHOUT_OFFSET",
            "a new checkpoint needs the end offset of the ledger's last batch, which is missing",
            "restore the checkpoint's folder or that row",
        ),
        Condition(
            "LEDGER_WITHOUT_TIME",
            "a batch to re-read has no prepared object and no time in the ledger",
            "restore that object or ledger row",
        ),
        Condition(
            "GENERATIONS_UNREADABLE",
            "`generations.json` is damaged",
            "restore or delete it: the ledger recreates it",
        ),
        Condition(
            "STREAM_SUMMARY_UNREADABLE",
            "`recent.json` or `hours.json` is damaged or of another release",
            "nothing: the stream rewrites it",
        ),
        Condition(
            "PREPARED_BATCH_UNREADABLE",
            "a prepared batch is damaged or of a later release",
            "run the release that wrote it, or move the object away",
        ),
        Condition("PREPARED_BATCH_VANISHED", "a prepared batch was deleted while it was used", "restart the stream"),
    ),
    *conditions_of(
        ConcurrencyError,
        Condition(
            "START_OVER_TABLE_HELD",
            "held batches have rows for a missing table",
            "start the stream, run `deltaworks tables resume`, stop it",
        ),
        Condition(
            "RESTORE_HAS_FOLLOWER",
            "a running stream reads this table, and would write restored rows twice",
            "`deltaworks stop` it first; it starts over afterwards",
        ),
        Condition(
            "REPROCESS_TABLE_HELD",
            "a held table waits for rows of batches to re-read",
            "let it catch up: `deltaworks tables resume`",
        ),
        Condition("GENERATION_CONTENDED", "two processes changed the checkpoint record at the same time", "run again"),
    ),
    *conditions_of(
        TransientError,
        Condition(
            "SWAP_COPY_DAMAGED",
            "a file copied into a table is incomplete",
            "run it again: the file is copied again",
        ),
    ),
)
