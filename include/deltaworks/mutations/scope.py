"""The organisations a batch looks at: those whose requests are new, and in which nothing else is read."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaworks.mutations.arrivals import Arrivals
from deltaworks.mutations.merge import NAMED_ORGANISATIONS
from deltaworks.specs.mutation import ORG_COLUMN


@dataclass(frozen=True, slots=True)
class Scope:
    """Organisations: by name while they are few, else as a frame of them; `everything` is all there are."""

    names: tuple[str, ...] | None
    frame: DataFrame | None = None

    @property
    def everything(self) -> bool:
        """Whether no organisation is left out."""
        return self.names is None and self.frame is None

    @property
    def empty(self) -> bool:
        """Whether there is none."""
        return self.names == ()

    def within(self, rows: DataFrame) -> DataFrame:
        """The rows of these organisations."""
        if self.names is not None:
            return rows.where(F.col(ORG_COLUMN).isin(*self.names)) if self.names else rows.limit(0)
        return rows if self.frame is None else rows.join(self.frame, ORG_COLUMN, "left_semi")

    def outside(self, rows: DataFrame) -> DataFrame:
        """The rows of all others."""
        if self.names is not None:
            return rows.where(~F.col(ORG_COLUMN).isin(*self.names)) if self.names else rows
        return rows.limit(0) if self.frame is None else rows.join(self.frame, ORG_COLUMN, "left_anti")

    def named(self, prefix: str) -> Column:
        """The literals that prune a table by organisation; true where they are too many to name."""
        return F.lit(True) if not self.names else F.col(f"{prefix}.{ORG_COLUMN}").isin(*self.names)


def everything() -> Scope:
    """All organisations."""
    return Scope(None)


def one(organisation: str) -> Scope:
    """One organisation."""
    return Scope((organisation,))


def scope_of(requests: DataFrame, came: Arrivals, condition: str) -> Scope:
    """The organisations of requests that came. Where some were taken out too, nobody knows whose they were: all."""
    if came.everything or came.removed:
        return everything()
    if not came.partitions:
        return Scope(())
    touched = requests.where(condition).where(F.col(ORG_COLUMN).isNotNull()).select(ORG_COLUMN).distinct()
    named = [row[0] for row in touched.limit(NAMED_ORGANISATIONS + 1).collect()]
    return Scope(tuple(sorted(named))) if len(named) <= NAMED_ORGANISATIONS else Scope(None, touched.localCheckpoint())
