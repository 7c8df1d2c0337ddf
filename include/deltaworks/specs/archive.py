"""Spec of a pipeline's archive, a table of original payloads that can be read again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from deltaworks.specs.base import Problem, Spec
from deltaworks.specs.sources.payload import RecordSourceSpec
from deltaworks.specs.spec_change_effects import NEXT_MAINTENANCE

if TYPE_CHECKING:
    from deltaworks.specs.pipeline import PipelineSpec

#: Name of the archive table.
ARCHIVE = "archive"


class ArchiveSpec(Spec):
    """The retention of original payloads. It has no default, since raw payloads may contain personal data."""

    retain_days: Annotated[int, NEXT_MAINTENANCE] = Field(
        ge=1, le=36_500, description="days after which maintenance deletes payloads, by date"
    )


def archive_problems(pipeline: PipelineSpec) -> Iterator[Problem]:
    """Yields conflicts between the archive and other sections of the pipeline."""
    if pipeline.archive is None:
        return
    if not isinstance(pipeline.source, RecordSourceSpec):
        alternative = "the table it reads keeps rows" if pipeline.source.kind == "delta" else "the bucket keeps objects"
        yield (
            ("archive",),
            f"an archive is only for records, which expire in kafka and kinesis; {alternative}: remove `archive`",
        )
    tables = [("tables", table) for table in pipeline.tables] + [("live", table) for table in pipeline.live]
    for index, (kind, table) in enumerate(tables):
        if table.name == ARCHIVE:
            position = index if kind == "tables" else index - len(pipeline.tables)
            yield (kind, position, "name"), f"the archive is a table called {ARCHIVE!r}; choose another name"
    for index, gold in enumerate(pipeline.gold.tables):
        if gold.name == ARCHIVE:
            yield ("gold", "tables", index, "name"), f"the archive is a table called {ARCHIVE!r}; choose another name"
