"""How a table lies: what its folders are, and what its rows are ordered by within one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field

from deltaworks.specs.table import TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a table lies: its partition columns with their types, and what its rows are ordered by within a partition.

    `rewritten` says that its rows change after they have landed, so that files leave an order they were put in. Of one
    that is `only_closed` no partition is touched that may still be written, `settles_after` its day at the earliest.
    """

    name: str
    partition_by: tuple[str, ...]
    zorder_by: tuple[str, ...]
    types: Mapping[str, str] = field(hash=False)
    cluster_by: tuple[str, ...] = ()
    rewritten: bool = False
    only_closed: bool = False
    settles_after: dt.timedelta = dt.timedelta(0)

    @classmethod
    def of(cls, table: TableSpec) -> Layout:
        """The layout a bronze table declares."""
        return cls(
            name=table.name,
            partition_by=table.partition_by,
            zorder_by=table.zorder_by,
            types=table.column_types(),
            cluster_by=table.cluster_by,
            rewritten=table.mutable is not None,
        )

    @property
    def ordered_by(self) -> tuple[str, ...]:
        """What rows are ordered by: given with each OPTIMIZE by Z-order, known to a clustered table itself."""
        return self.cluster_by or self.zorder_by

    @property
    def date_columns(self) -> tuple[str, ...]:
        """The partition columns that name a day."""
        return tuple(name for name in self.partition_by if self.types[name] == "date")
