"""Every operation: a module that does it, and an entry here."""

from __future__ import annotations

import difflib

from deltaworks.errors import ConfigError
from deltaworks.operations.base import Operation

_OPERATIONS = (
    Operation(
        name="rebuild_gold",
        command="gold build",
        summary="Bring gold tables up to date: only the partitions that new data touched, or the dates named.",
        run="deltaworks.operations.gold:build",
        needs_spark=True,
        family="gold",
        for_gold=True,
    ),
    Operation(
        name="refresh_gold",
        command="gold refresh",
        summary="Build gold tables whole in shadows, check these, and swap them in by one commit each.",
        run="deltaworks.operations.gold:refresh",
        needs_spark=True,
        destructive=True,
        family="gold",
        for_gold=True,
    ),
    Operation(
        name="optimize_tables",
        command="optimize",
        summary="Rewrite the partitions whose health says that it is worth it, best first, within some minutes.",
        run="deltaworks.operations.upkeep:optimize",
        needs_spark=True,
        beside=("stream", "mutations", "gold"),
        family="maintenance",
    ),
    Operation(
        name="vacuum_tables",
        command="vacuum",
        summary="Delete files that no version within the retention needs any more.",
        run="deltaworks.operations.upkeep:vacuum",
        destructive=True,
        unattended=True,
        approval=True,
        bounds={"max_files": "files"},
        beside=("stream", "mutations", "gold"),
        family="maintenance",
    ),
    Operation(
        name="remove_orphans",
        command="tables orphans",
        summary="Remove files that died batches left in table folders and in staging, and old prepared batches.",
        run="deltaworks.operations.upkeep:orphans",
        destructive=True,
        unattended=True,
        beside=("stream", "mutations", "gold"),
        family="maintenance",
    ),
    Operation(
        name="keep_control_tables",
        command="tables compact-control",
        summary="Merge the small files of the ledger, the progress table and the other control tables.",
        run="deltaworks.operations.upkeep:control_tables",
        destructive=True,
        unattended=True,
        beside=("stream", "mutations", "gold"),
        family="maintenance",
    ),
    Operation(
        name="expire_quarantine",
        command="quarantine expire",
        summary="Remove rows in quarantine, messages of no use and archived payloads that are older than declared.",
        run="deltaworks.operations.upkeep:expire",
        destructive=True,
        unattended=True,
        beside=("stream", "mutations", "gold"),
        family="maintenance",
    ),
    Operation(
        name="learn_input",
        command="pipelines learn-input",
        summary="Learn from the progress table how much input is usual at each hour, for the health check.",
        run="deltaworks.operations.upkeep:learn_input",
        family="maintenance",
    ),
    Operation(
        name="snapshot_health",
        command="tables snapshot",
        summary="Measure the health of every table of a pipeline and keep it, for trends.",
        run="deltaworks.operations.upkeep:snapshot_health",
        family="maintenance",
    ),
    Operation(
        name="mutate_tables",
        command="mutations run",
        summary="Apply the mutation requests that wait.",
        run="deltaworks.operations.mutate:mutate",
        needs_spark=True,
        destructive=True,
        beside=("stream", "maintenance", "gold"),
        family="mutations",
        for_mutable=True,
    ),
    Operation(
        name="purge_deleted",
        command="mutations purge",
        summary="Remove rows that a mutation deleted so long ago that no late request can bring them back.",
        run="deltaworks.operations.mutate:purge",
        needs_spark=True,
        destructive=True,
        unattended=True,
        beside=("stream", "gold"),
        family="mutations",
        for_mutable=True,
    ),
    Operation(
        name="reprocess",
        command="reprocess",
        summary="Read landed objects or records again with the declaration as it is now, and replace their rows.",
        run="deltaworks.operations.reprocess:reprocess",
        needs_spark=True,
        destructive=True,
        beside=("stream", "gold"),
        family="recovery",
    ),
    Operation(
        name="restore",
        command="restore",
        summary="Put one table back to a batch, a time or a version; or all tables of a pipeline to one batch.",
        run="deltaworks.operations.restore:restore",
        destructive=True,
        approval=True,
        bounds={"max_rows": "rows_out"},
        gold_follows=True,
        beside=("stream", "gold"),
        family="recovery",
    ),
    Operation(
        name="start_over",
        command="pipelines start-over",
        summary="Recreate all tables of a pipeline and read its source again from the beginning.",
        run="deltaworks.operations.restore:start_over",
        destructive=True,
        approval=True,
        bounds={"max_rows": "rows_out"},
        beside=(),
        family="recovery",
    ),
    Operation(
        name="replay_quarantine",
        command="quarantine replay",
        summary="Read quarantined rows again with the declaration as it is now, and land those that fit, each once.",
        run="deltaworks.operations.replay:replay",
        destructive=True,
        beside=("stream", "maintenance", "gold"),
        family="recovery",
    ),
    Operation(
        name="resume_table",
        command="tables resume",
        summary="Ask the stream to catch up a suspended table from its prepared batches.",
        run="deltaworks.operations.recover:resume",
        family="recovery",
    ),
    Operation(
        name="recover_log",
        command="recover log",
        summary="Recreate lost commits of a table's Delta log from prepared batches, or go back to before them.",
        run="deltaworks.operations.recover:log",
        destructive=True,
        approval=True,
        bounds={"max_rows": "rows_out"},
        beside=("gold",),
        family="recovery",
    ),
    Operation(
        name="recover_files",
        command="recover files",
        summary="Take lost data files out of a table's log, and bring their rows back from the objects they came from.",
        run="deltaworks.operations.recover:files",
        destructive=True,
        approval=True,
        bounds={"max_rows": "rows_out"},
        beside=("gold",),
        family="recovery",
    ),
    Operation(
        name="recover_table",
        command="recover table",
        summary="Recreate a dropped table as it is declared, with the rows of every batch that had landed in it.",
        run="deltaworks.operations.recover:table",
        destructive=True,
        approval=True,
        beside=("gold",),
        family="recovery",
    ),
    Operation(
        name="repair_checkpoint",
        command="checkpoint repair",
        summary="Retire a damaged checkpoint, and complete a ledger that lost batches.",
        run="deltaworks.operations.recover:repair",
        destructive=True,
        beside=("gold",),
        family="recovery",
    ),
    Operation(
        name="reconcile",
        command="files reconcile",
        summary="Compare a relay's buckets with its log: objects never announced, and objects gone unread.",
        run="deltaworks.operations.files:reconcile",
        scope="relay",
        destructive=True,
        family="recovery",
    ),
    Operation(
        name="redrive",
        command="files redrive",
        summary="Put dead letters, and quarantined messages that can be used now, back into the relay's queue.",
        run="deltaworks.operations.files:redrive",
        scope="relay",
        destructive=True,
        family="recovery",
    ),
    Operation(
        name="clean_source",
        command="files clean",
        summary="Delete or archive objects that every pipeline which reads them has landed, as the relay declares.",
        run="deltaworks.operations.files:clean",
        scope="relay",
        destructive=True,
        beside=("stream", "mutations", "gold"),
        family="maintenance",
    ),
)
#: By name.
OPERATIONS = {declared.name: declared for declared in _OPERATIONS}


def operation(name: str) -> Operation:
    """One operation by its name.

    Raises:
        ConfigError: OPERATION_UNKNOWN.
    """
    if name not in OPERATIONS:
        nearest = difflib.get_close_matches(name, OPERATIONS, n=1, cutoff=0.0)
        raise ConfigError(
            "OPERATION_UNKNOWN", f"No operation is called {name!r}.", hint=f"The nearest is {nearest[0]}."
        )
    return OPERATIONS[name]
