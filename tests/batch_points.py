"""Points in the life of a batch at which tests can inject actions, by wrapping functions of the engine.

Points: `files_written`, `prepared`, `committed:<table>`, `committed`, `completed`; of held tables `held:<table>`
(before a turn is granted), `caught_up:<table>` and `recorded:<table>`; of keyed tables `merging:<table>` and
`merged:<table>`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from deltaworks.engine import batches
from deltaworks.engine.batches import BatchProcessor
from deltaworks.engine.commit import TableCommitter
from deltaworks.engine.held_tables import TableHolds
from deltaworks.engine.keyed.keyed_catchup import KeyedTableCatchUp
from deltaworks.engine.keyed.merge import KeyedMerge
from deltaworks.engine.ledger import Ledger

Fault = Callable[[str], None]
#: By owner epoch; None is any owner.
_FAULTS: dict[int | None, Fault] = {}


def call_at_points_of(epoch: int | None, fault: Fault | None) -> None:
    """Calls `fault` at every point this owner reaches (None: any owner); a `fault` of None ends the calls."""
    _install()
    if fault is None:
        _FAULTS.pop(epoch, None)
    else:
        _FAULTS[epoch] = fault


@contextmanager
def call_at_points(fault: Fault) -> Iterator[None]:
    """Calls `fault` at every point that any owner in this process reaches while the block runs."""
    _install()
    _FAULTS[None] = fault
    try:
        yield
    finally:
        del _FAULTS[None]


def clear_faults() -> None:
    """Removes all faults."""
    _FAULTS.clear()


def _reach(epoch: int, point: str) -> None:
    for owner in (epoch, None):
        if owner in _FAULTS:
            _FAULTS[owner](point)


@functools.cache
def _install() -> None:
    _after(BatchProcessor, "_write", lambda self, *_: (self._ownership.step.version, "files_written"))
    _after(BatchProcessor, "_prepare", lambda self, *_: (self._ownership.step.version, "prepared"))
    _after(Ledger, "complete", lambda *_, owner: (owner.version, "completed"))
    _after(
        Ledger,
        "catch_up",
        lambda _, steps, *, owner: (owner.version, f"recorded:{steps[-1][1].table_name}") if steps else None,
    )
    _around_commits()
    _around_holds()
    _around_merges()


def _after(owner: type, name: str, point: Callable[..., tuple[int, str] | None]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*positional: Any, **named: Any) -> Any:
        result = original(*positional, **named)
        reached = point(*positional, **named)
        if reached is not None:
            _reach(*reached)
        return result

    setattr(owner, name, wrapped)


class _ReportingCommitter:
    """Delegates to a committer and reaches a point after each table."""

    def __init__(self, committer: TableCommitter) -> None:
        self._committer = committer

    def commit(self, batch: Any, prepared_table: Any) -> Any:
        outcome = self._committer.commit(batch, prepared_table)
        _reach(self._committer._owner.version, f"committed:{prepared_table.table}")
        return outcome


def _around_commits() -> None:
    original: Any = batches.commit_tables

    def commit_tables(prepared: Any, committer: TableCommitter, **options: Any) -> Any:
        outcomes = original(prepared, _ReportingCommitter(committer), **options)
        _reach(committer._owner.version, "committed")
        return outcomes

    batches.commit_tables = commit_tables  # type: ignore[assignment]


def _around_holds() -> None:
    grant_turn: Any = TableHolds._grant_turn
    classify_failure: Any = TableHolds._classify_failure

    def reporting_grant_turn(self: TableHolds, table: str, turn: Any, next_batch: int) -> None:
        grant: Any = self._turns.grant

        def reporting_grant(granted: Any) -> None:
            _reach(self._owner.version, f"held:{table}")
            grant(granted)

        self._turns.grant = reporting_grant  # type: ignore[method-assign]
        try:
            grant_turn(self, table, turn, next_batch)
        finally:
            self._turns.grant = grant  # type: ignore[method-assign]

    def reporting_classify_failure(self: TableHolds, work: Any) -> Any:
        result = classify_failure(self, work)
        if isinstance(result, tuple):
            _reach(self._owner.version, f"caught_up:{result[1].table}")
        return result

    TableHolds._grant_turn = reporting_grant_turn  # type: ignore[method-assign]
    TableHolds._classify_failure = reporting_classify_failure  # type: ignore[method-assign]


def _around_merges() -> None:
    for owner, name in ((KeyedMerge, "merge"), (KeyedTableCatchUp, "_replace")):
        _around_merge(owner, name)


def _around_merge(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    def reporting_merge(self: Any, *positional: Any, **named: Any) -> Any:
        guard = named.get("guard", positional[-1] if positional else None)
        epoch, table = guard.owner_step.version, self._table.name
        _reach(epoch, f"merging:{table}")
        outcome = original(self, *positional, **named)
        _reach(epoch, f"merged:{table}")
        return outcome

    setattr(owner, name, reporting_merge)
