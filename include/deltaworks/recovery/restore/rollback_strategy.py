"""Which way a pipeline can go back to a batch without losing a row: RESTORE, or starting over, or none.

RESTORE puts all tables back, those among them that mutations change and those that requests land in. What landed since
is read again from the source; names and intervals are made anew; and the first mutation batch of the new generation
relies on nothing that was applied before: it compares every interval with the rows, which keep the ids they arrived
with. So RESTORE is exact where the files of that version are there and the source still has everything since. Starting
over applies all requests to all rows, and is exact where the source still has everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from deltaworks.control.home import PipelineHome
from deltaworks.errors import ContractError
from deltaworks.recovery.reprocess.records import RecordResolver
from deltaworks.sources.record_source import RecordRange, RetainedRange
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.payload import RecordSourceSpec
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackStrategy:
    """The way, and why it is not one of those before it."""

    kind: Literal["restore", "start_over", "none"]
    reasons: tuple[str, ...] = ()

    def describe(self, pipeline: str) -> str:
        """For people: what to do, and why."""
        text = {
            "restore": "RESTORE brings it back exactly",
            "start_over": f"`deltaworks pipelines start-over {pipeline}` brings all rows again, with all requests",
            "none": "nothing brings all rows back",
        }[self.kind]
        return "; ".join([text, *self.reasons])

    def require_restore(self, pipeline: str, batch: int) -> None:
        """Refuse to go back by RESTORE where that would lose rows.

        Raises:
            ContractError: ROLLBACK_LOSES_ROWS.
        """
        if self.kind == "restore":
            return
        hint = (
            f"`deltaworks pipelines start-over {pipeline}` reads everything again and applies all requests."
            if self.kind == "start_over"
            else "Go back to a later batch; or put single tables back: `deltaworks restore PIPELINE TABLE`."
        )
        raise ContractError(
            "ROLLBACK_LOSES_ROWS",
            f"Going back to batch {batch} of {pipeline!r} would lose rows: {'; '.join(self.reasons)}.",
            hint=hint,
        )


def choose_strategy(
    *,
    missing_files: Mapping[str, Sequence[str]],
    expired_after: Sequence[RecordRange],
    expired_before: Sequence[RecordRange],
) -> RollbackStrategy:
    """The first way that loses nothing.

    Args:
        missing_files: by table the files of the version that are gone.
        since, before: records that landed after the batch, and up to it, that the source does not surely have.
    """
    reasons = [
        f"{len(files)} files of {table} are gone, most likely removed by VACUUM"
        for table, files in sorted(missing_files.items())
        if files
    ]
    if expired_after:
        reasons.append(f"the source does not have all that landed since: {_abbreviate(expired_after)}")
    if not reasons:
        return RollbackStrategy(kind="restore")
    if not expired_after and not expired_before:
        return RollbackStrategy(kind="start_over", reasons=tuple(reasons))
    if expired_before:
        reasons.append(f"the source does not have all that landed before: {_abbreviate(expired_before)}")
    return RollbackStrategy(kind="none", reasons=tuple(reasons))


def _abbreviate(ranges: Sequence[RecordRange]) -> str:
    keys = [one.key for one in ranges]
    return ", ".join(keys[:_SHOWN]) + ", …" * (len(keys) > _SHOWN)


class RollbackStrategies:
    """Judges the ways of one pipeline. Used by one thread."""

    def __init__(
        self,
        catalog: Catalog,
        spec: PipelineSpec,
        lake: Lake,
        home: PipelineHome,
        spark: Callable[[], SparkSession] | None,
    ) -> None:
        """`spark` gives a session, by whose clients brokers are asked."""
        self._catalog = catalog
        self._spec = spec
        self._lake = lake
        self._home = home
        self._spark = spark

    def choose(self, batch: int, missing_files: Mapping[str, Sequence[str]]) -> RollbackStrategy:
        """The way back to a batch.

        Objects and rows of Delta tables count as there: `deltaworks reprocess --from-start --exact` reads them all.

        Raises:
            TransientError: the source does not answer.
        """
        gone = self._expired_ranges()
        return choose_strategy(
            missing_files=missing_files,
            expired_after=[one for one in gone if one.batch_id > batch],
            expired_before=[one for one in gone if one.batch_id <= batch],
        )

    def _expired_ranges(self) -> list[RecordRange]:
        if not isinstance(self._spec.source, RecordSourceSpec) or self._spark is None:
            return []
        resolver = RecordResolver(self._catalog, self._spec, self._lake, self._home)
        ranges = resolver.landed_ranges()
        kept = resolver.source.retained(self._spark(), ranges)
        return [part for one, has in zip(ranges, kept, strict=True) if (part := _expired_part(one, has)) is not None]


def _expired_part(one: RecordRange, has: RetainedRange) -> RecordRange | None:
    """What of a range the source surely does not have; what it may have, a stream reads or says that it is gone."""
    return one.clip(one.first, min(has.certain_from, has.possible_from) - 1)
