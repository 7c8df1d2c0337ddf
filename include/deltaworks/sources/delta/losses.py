"""Detects source data that was deleted before a stream read it: commits of the Delta log, or files that VACUUM deleted.

Neither can be recovered, so the stream ends with an error that names the versions. Spark's own error names only a file,
or would be retried.
"""

from __future__ import annotations

import re

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.checkpoint import batch_numbers
from deltaworks.errors import ContractError
from deltaworks.sources.base import LossCheck
from deltaworks.tables.log import list_log

_MISSING_FILE = re.compile(r"FAILED_READ_FILE\.FILE_NOT_EXIST\] Encountered error while reading file (\S+?)\.? ")


def loss_check(reader: str, table_name: str) -> LossCheck:
    """Returns a check that ends the stream with SOURCE_EXPIRED if VACUUM deleted a file of a version that it must still
    read.

    Args:
        reader: the pipeline that reads the table.
    """

    def removed(error: Exception) -> ContractError | None:
        missing = _MISSING_FILE.search(str(error))
        if missing is None:
            return None
        return expired_error(reader, table_name, f"a file of a version it reads was removed, {missing.group(1)}")

    return LossCheck(expiry_error=removed)


def expired_error(reader: str, table_name: str, detail: str) -> ContractError:
    """Returns the error for data that was deleted before the stream read it."""
    return ContractError(
        "SOURCE_EXPIRED",
        f"{reader!r} has not read all of {table_name}: {detail}.",
        hint=(
            f"Read the current table with `deltaworks pipelines start-over {reader}`. Retain its log "
            "(delta.logRetentionDuration) and removed files for longer than the stream may be behind."
        ),
    )


def check_versions(objects: ObjectStore, reader: str, table_name: str, *, key: str, latest: int) -> None:
    """Raises if the table's log no longer has the version that the stream reads next.

    Args:
        key: key of the table, whose latest version is `latest`.

    Raises:
        ContractError: SOURCE_EXPIRED, with the missing versions.
    """
    next_version = _next_version(objects, reader)
    if next_version is None or next_version > latest:
        return
    commits = list_log(objects, key).commits
    first_retained = min((version for version in commits if version >= next_version), default=latest + 1)
    if first_retained > next_version:
        raise expired_error(
            reader, table_name, f"versions {next_version} to {first_retained - 1} are no longer in its log"
        )


def check_not_rolled_back(objects: ObjectStore, reader: str, table_name: str, *, pipeline: str, table: str) -> None:
    """Raises if the pipeline that writes the table was rolled back, because it commits the same rows again.

    Raises:
        ContractError: DELTA_SOURCE_ROLLED_BACK.
    """
    next_version = _next_version(objects, reader)
    versions = [] if next_version is None else PipelineHome(objects, pipeline).start_overs.rollback_versions(table)
    later = [version for version in versions if next_version is not None and version >= next_version]
    if later:
        raise ContractError(
            "DELTA_SOURCE_ROLLED_BACK",
            f"{table_name} was rolled back in version {max(later)}: {reader!r} has landed rows that were removed there "
            "and will be written again.",
            hint=(
                f"Read the current table with `deltaworks pipelines start-over {reader}`; not necessary with a "
                "change feed."
            ),
        )


def _next_version(objects: ObjectStore, reader: str) -> int | None:
    """Returns the table version that the query reads next; None before its first batch, or while it reads the initial
    snapshot.
    """
    generations = PipelineHome(objects, reader).generations
    recorded = generations.effective()
    folder = paths.checkpoint(reader, recorded.generation, recorded.current.ordinal)
    committed = batch_numbers(objects, f"{folder}/commits/")
    offset = generations.end_offset(recorded, committed[-1]) if committed else recorded.current.start
    return None if offset is None or offset.get("isStartingVersion") else int(offset["reservoirVersion"])
