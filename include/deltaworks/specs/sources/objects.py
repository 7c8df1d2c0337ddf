"""Spec of a source that reads objects which a relay found by notifications or listings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from deltaworks.specs.base import Bytes, Name
from deltaworks.specs.globs import Glob
from deltaworks.specs.sources.payload import PayloadSpec
from deltaworks.specs.spec_change_effects import CHANGES_PARSING, CHANGES_SOURCE, NEXT_START, Edit, Effect

_CHANGES_OBJECTS = Edit(
    Effect.MIXED_ROWS,
    "Objects at the new location that were announced before the stream's offset would not be read. Declare a new "
    "pipeline; or accept it with `deltaworks pipelines diff {pipeline} --accept`, restart, and read them with "
    "`deltaworks reprocess {pipeline} --from-start`.",
)


class FileSourceSpec(PayloadSpec):
    """Objects in a relay's file event log: announced by its queue (`s3_sqs`) or listed (`cloud_files`).

    The `partition_columns` are read from key segments such as `day=2026-01-31` and become fields of `_partition`.
    """

    kind: Annotated[Literal["s3_sqs", "cloud_files"], CHANGES_SOURCE]
    relay: Annotated[Name, CHANGES_SOURCE]
    bucket: Annotated[str, _CHANGES_OBJECTS]
    prefix: Annotated[str, _CHANGES_OBJECTS] = ""
    glob: Annotated[Glob | None, _CHANGES_OBJECTS] = None
    partition_columns: Annotated[tuple[Name, ...], CHANGES_PARSING] = ()
    max_files_per_batch: Annotated[int, NEXT_START] = Field(default=500, ge=1)
    max_bytes_per_batch: Annotated[Bytes, NEXT_START] = 256 << 20
    max_object_bytes: Annotated[Bytes, NEXT_START] = 512 << 20

    def display_name(self) -> str:
        """Returns bucket and key pattern for messages."""
        return f"{self.bucket}/{self.glob or self.prefix}"
