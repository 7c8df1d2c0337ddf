"""The two engines of a mutation batch have one interface: Spark for any batch, this process for one of few requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from deltaworks.mutations.commits import StepCommits
from deltaworks.mutations.entity_sizes import LargestEntity
from deltaworks.mutations.small_merge import AffectedRange
from deltaworks.specs.table import TableSpec

#: Runs a merge and returns the number of attempts. Its argument is called before each attempt.
MergeFunction = Callable[[Callable[[], None]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChanges:
    """The changes of a batch to one table.

    Args:
        invalid_values: update values that do not fit their column's type; rows keep their original value instead.
        plan: plans the merge before the write turn, so that the stream does not wait for it.
    """

    affected: AffectedRange
    invalid_values: int
    plan: Callable[[], MergeFunction]


class BatchEngine(Protocol):
    """A batch whose requests are resolved at its recorded versions. Each method that commits does so once.

    Every method may raise `SparkRequiredError` if the engine is this process.
    """

    @property
    def name(self) -> str:
        """The engine: `spark` or `process`."""

    @property
    def commits(self) -> StepCommits:
        """The commits of the batch."""

    @property
    def request_count(self) -> int:
        """The number of requests of the organisations in scope."""

    def request_counts(self) -> dict[str, int]:
        """Returns the number of new requests by operation. Invalid requests are counted under an empty name."""

    def table_changes(self, table: TableSpec) -> PlannedChanges:
        """Returns the changes to a mutable table."""

    def notify(self, table: TableSpec, notification_table: TableSpec, *, key: str, version: int) -> None:
        """Commits the notifications of the rows that the batch changed in `table`, whose merge has this version."""

    def update_names(self, *, has_new_names: bool) -> None:
        """Commits the changes of the mapping from ids to names."""

    def update_intervals(self) -> None:
        """Commits the changes of the stored intervals."""

    def large_entities(self, *, limit: int) -> list[LargestEntity]:
        """Returns the largest entity of every organisation that has one of more than `limit` ids."""

    def organisations_in_scope(self, organisations: set[str]) -> set[str]:
        """Returns those of the organisations that the batch covers."""
