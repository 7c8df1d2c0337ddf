"""What maintenance of a Delta table has removed before a stream read it: commits of its log, or files of old versions.

Neither comes back. Both end the stream by name, where Spark's own errors speak of a file, or would be tried again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.checkpoint import batch_numbers
from deltaworks.errors import ContractError
from deltaworks.sources.base import LossCheck

_MISSING_FILE = re.compile(r"FAILED_READ_FILE\.FILE_NOT_EXIST\] Encountered error while reading file (\S+?)\.? ")
_COMMIT = re.compile(r"/_delta_log/(\d{20})\.json$")


def loss_check(reader: str, place: str) -> LossCheck:
    """Ends the stream of the pipeline `reader` where a file of a version that it reads was vacuumed: SOURCE_EXPIRED."""

    def removed(error: Exception) -> ContractError | None:
        gone = _MISSING_FILE.search(str(error))
        if gone is None:
            return None
        return expired_error(reader, place, f"a file of a version that is read was removed, {gone.group(1)}")

    return LossCheck(expiry_error=removed)


def expired_error(reader: str, place: str, detail: str) -> ContractError:
    """The error of a stream that comes too late to a table."""
    return ContractError(
        "SOURCE_EXPIRED",
        f"{reader!r} has not read all of {place}, and {detail}.",
        hint=f"What the table has now can be read: `deltaworks pipelines start-over {reader}`. Keep its log "
        "(delta.logRetentionDuration) and removed files for longer than the stream may be behind.",
    )


def check_versions(objects: ObjectStore, reader: str, place: str, *, key: str, latest: int) -> None:
    """Refuse to continue where the log no longer has the version that comes next.

    Args:
        key: of the table, whose newest version is `latest`.

    Raises:
        ContractError: SOURCE_EXPIRED, with the versions that are gone.
    """
    following = _next_version(objects, reader)
    if following is None or following > latest:
        return
    kept = _commit_versions(objects.list(f"{key}/_delta_log/"))
    first = min((version for version in kept if version >= following), default=latest + 1)
    if first > following:
        raise expired_error(reader, place, f"versions {following} to {first - 1} are not in its log any more")


def check_not_rolled_back(objects: ObjectStore, reader: str, place: str, *, pipeline: str, table: str) -> None:
    """Refuse to continue across a rollback of the table's pipeline: what landed before it lands again after it.

    Raises:
        ContractError: DELTA_SOURCE_ROLLED_BACK.
    """
    following = _next_version(objects, reader)
    versions = [] if following is None else PipelineHome(objects, pipeline).start_overs.rollback_versions(table)
    ahead = [version for version in versions if following is not None and version >= following]
    if ahead:
        raise ContractError(
            "DELTA_SOURCE_ROLLED_BACK",
            f"{place} was rolled back in version {max(ahead)}: {reader!r} has landed rows that are gone there, and "
            "that come again.",
            hint=f"`deltaworks pipelines start-over {reader}` reads the table as it is; a change feed needs none.",
        )


def _commit_versions(keys: Iterable[str]) -> list[int]:
    return [int(match.group(1)) for match in map(_COMMIT.search, keys) if match]


def _next_version(objects: ObjectStore, reader: str) -> int | None:
    """The version the query continues with behind its last batch; None where it has none, or works off a snapshot."""
    generations = PipelineHome(objects, reader).generations
    recorded = generations.effective()
    folder = paths.checkpoint(reader, recorded.generation, recorded.current.ordinal)
    done = batch_numbers(objects, f"{folder}/commits/")
    offset = generations.end_offset(recorded, done[-1]) if done else recorded.current.start
    return None if offset is None or offset.get("isStartingVersion") else int(offset["reservoirVersion"])
