"""Checks the grain of gold tables, with which single hours are rebuilt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from deltaworks.specs.base import KeyPath
from deltaworks.specs.gold import AffectsSpec, GoldTableSpec

if TYPE_CHECKING:
    from deltaworks.specs.pipeline import PipelineSpec


def grain_problems(pipeline: PipelineSpec, gold: GoldTableSpec) -> Iterator[tuple[KeyPath, str]]:
    """Yields problems with a gold table's grain, or with `affects` in hours without a grain. Key paths start at the
    table.
    """
    if gold.grain is None:
        yield from _hours_without_grain(gold)
        return
    if gold.grain.column == gold.partition_by:
        yield (
            ("grain", "column"),
            f"{gold.grain.column!r} is the partition date of {gold.name!r}; use a timestamp within that date",
        )
    if isinstance(gold.affects, str):
        yield (
            ("affects",),
            f"`affects: {gold.affects}` does not rebuild by hours; remove `grain`, or write hours: [0]",
        )
        return
    yield from _mixed_units(gold)
    if isinstance(gold.affects, AffectsSpec) and not gold.affects.hours:
        yield ("affects",), "complete dates would be rebuilt despite `grain`; write hours: [0], or remove `grain`"
    events = {table.name for table in pipeline.event_tables}
    dedupe = pipeline.gold.dedupe
    if dedupe is not None and dedupe.within_hours is None and events & {*gold.reads}:
        yield (
            ("grain",),
            "duplicates that are dates apart would rebuild complete dates; declare gold.dedupe.within_hours, such as 1",
        )


def _hours_without_grain(gold: GoldTableSpec) -> Iterator[tuple[KeyPath, str]]:
    for key_path, affects in _affects_specs(gold):
        if affects.hours:
            yield (*key_path, "hours"), f"{gold.name!r} is rebuilt by dates; write days: [0], or declare `grain`"


def _mixed_units(gold: GoldTableSpec) -> Iterator[tuple[KeyPath, str]]:
    for key_path, affects in _affects_specs(gold):
        if affects.hours and affects.days != AffectsSpec().days:
            yield (*key_path, "days"), "a change affects either hours or days; write days as hours: [-24]"


def _affects_specs(gold: GoldTableSpec) -> Iterator[tuple[KeyPath, AffectsSpec]]:
    if isinstance(gold.affects, AffectsSpec):
        yield ("affects",), gold.affects
    elif not isinstance(gold.affects, str):
        yield from ((("affects", name), one) for name, one in gold.affects.items() if isinstance(one, AffectsSpec))
