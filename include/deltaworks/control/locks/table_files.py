"""Nobody deletes files of a table while somebody puts some of them back.

VACUUM decides by one version which files nobody needs, and may delete them for an hour after that. A restore finds
files of an old version still there, and commits them. At once they would leave a table whose files are gone, however
long files are kept: so each holds this lease of the table meanwhile. Streams, merges and OPTIMIZE need not: what they
commit is young, or in the version that VACUUM goes by.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from deltaworks.control import paths
from deltaworks.control.locks.lease import Lease
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ConcurrencyError

TTL_SECONDS = 20.0
#: Long enough to see that whoever has it is gone.
_SHORT_WAIT_SECONDS = 2 * TTL_SECONDS
#: A VACUUM of one table usually ends within this.
LONG_WAIT_SECONDS = 900.0
HELD = "TABLE_FILES_HELD"
_R = TypeVar("_R")


@contextlib.contextmanager
def files_lease(
    objects: ObjectStore,
    pipeline: str,
    table: str,
    *,
    work: str,
    wait_seconds: float = LONG_WAIT_SECONDS,
    ttl_seconds: float = TTL_SECONDS,
) -> Iterator[Callable[[], None]]:
    """Delete files of a table, or put some back, alone while the block runs. Call what it gives before a commit.

    Args:
        work: what is to be done, for people.
        wait_seconds: how long to wait for whoever has it.

    Raises:
        ConcurrencyError: TABLE_FILES_HELD.
    """
    name = f"{pipeline}.{table}"
    key = paths.pipeline_control(pipeline, f"maintenance/files-{table}.json")
    lease = Lease(objects, key, ttl_seconds=ttl_seconds, name=name)
    try:
        lease.acquire(wait_seconds=wait_seconds)
    except ConcurrencyError as error:
        raise _held(name, work, f"was not begun within {wait_seconds:.0f} s. {error.message}") from error

    def check() -> None:
        if lease.lost:
            raise _held(name, work, "was given up: another job has taken over, or the storage did not answer.")

    try:
        yield check
    finally:
        lease.release()


def unless_held(
    objects: ObjectStore,
    pipeline: str,
    table: str,
    *,
    work: str,
    do: Callable[[], _R],
    left_out: Callable[[str], _R],
    dry_run: bool,
) -> _R:
    """What `do` gives, done alone with the files of a table; `left_out` of the reason where another job has them.

    A dry run deletes nothing, and so asks nobody. What `do` raises is raised.
    """
    if dry_run:
        return do()
    try:
        with files_lease(objects, pipeline, table, work=work, wait_seconds=_SHORT_WAIT_SECONDS):
            return do()
    except ConcurrencyError as error:
        if error.condition != HELD:
            raise
        return left_out(f"left out: {error.message}")


@contextlib.contextmanager
def files_leases(objects: ObjectStore, pipeline: str, tables: Iterable[str], *, work: str) -> Iterator[None]:
    """`files_lease` of several tables.

    Raises:
        ConcurrencyError: TABLE_FILES_HELD.
    """
    with contextlib.ExitStack() as held:
        for table in tables:
            held.enter_context(files_lease(objects, pipeline, table, work=work))
        yield


def _held(name: str, work: str, what: str) -> ConcurrencyError:
    return ConcurrencyError(
        HELD,
        f"{work} of {name} {what}",
        hint="Files of the table are being deleted, or put back: let that end, then run this again.",
    )
