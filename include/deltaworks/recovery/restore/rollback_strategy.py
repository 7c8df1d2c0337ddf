"""Chooses how a pipeline is rolled back to a batch without losing rows: by RESTORE, by starting over, or not at all.

RESTORE returns all tables to that batch, mutable and request tables included. Later data is read again from the source.
The mapping of names and the intervals of mutations are rebuilt. The first mutation batch of the new generation compares
every interval with the rows, which keep their original ids. RESTORE is exact if the files of that version exist and the
source still has all later data. Starting over applies all requests to all rows and is exact if the source still has
everything.
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
from deltaworks.specs.record_sources import RecordSourceSpec
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackStrategy:
    """The chosen strategy, and why the preferred ones are not possible."""

    kind: Literal["restore", "start_over", "none"]
    reasons: tuple[str, ...] = ()

    def describe(self, pipeline: str) -> str:
        """Describes the strategy and its reasons in text."""
        text = {
            "restore": "RESTORE brings it back exactly",
            "start_over": f"`deltaworks pipelines start-over {pipeline}` brings all rows again, with all requests",
            "none": "nothing brings all rows back",
        }[self.kind]
        return "; ".join([text, *self.reasons])

    def require_restore(self, pipeline: str, batch: int) -> None:
        """Rejects a rollback by RESTORE that would lose rows.

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
    """Returns the first strategy that loses no rows.

    Args:
        missing_files: by table, missing files of the version.
        expired_after: records landed after the batch that the source may no longer have.
        expired_before: records landed up to the batch that the source may no longer have.
    """
    reasons = [
        f"{len(files)} files of {table} are missing, most likely removed by VACUUM"
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
    """Evaluates the strategies of one pipeline. Not thread-safe."""

    def __init__(
        self,
        catalog: Catalog,
        spec: PipelineSpec,
        lake: Lake,
        home: PipelineHome,
        spark: Callable[[], SparkSession] | None,
    ) -> None:
        """Creates the evaluator. `spark` returns a session, whose clients query the Kafka brokers."""
        self._catalog = catalog
        self._spec = spec
        self._lake = lake
        self._home = home
        self._spark = spark

    def choose(self, batch: int, missing_files: Mapping[str, Sequence[str]]) -> RollbackStrategy:
        """Chooses the strategy for a batch.

        Assumes that objects and rows of Delta tables exist; `deltaworks reprocess --from-start --exact` reads them all.

        Raises:
            TransientError: the source does not answer.
        """
        expired = self._expired_ranges()
        return choose_strategy(
            missing_files=missing_files,
            expired_after=[one for one in expired if one.batch_id > batch],
            expired_before=[one for one in expired if one.batch_id <= batch],
        )

    def _expired_ranges(self) -> list[RecordRange]:
        if not isinstance(self._spec.source, RecordSourceSpec) or self._spark is None:
            return []
        resolver = RecordResolver(self._catalog, self._spec, self._lake, self._home)
        ranges = resolver.landed_ranges()
        retained_ranges = resolver.source.retained(self._spark(), ranges)
        return [
            part
            for one, has in zip(ranges, retained_ranges, strict=True)
            if (part := _expired_part(one, has)) is not None
        ]


def _expired_part(batch_range: RecordRange, retained: RetainedRange) -> RecordRange | None:
    """Returns the part of a range that the source certainly no longer has."""
    return batch_range.clip(batch_range.first, min(retained.certain_from, retained.possible_from) - 1)
