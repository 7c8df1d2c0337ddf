"""Spec of a source that reads a Delta table or its change data feed."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from deltaworks.specs.base import Bytes, Name, Spec
from deltaworks.specs.sources.payload import BudgetSpec
from deltaworks.specs.spec_change_effects import (
    CHANGES_ADDRESS,
    CHANGES_FORMAT,
    CHANGES_SOURCE,
    FIRST_START_ONLY,
    NEXT_START,
)


class DeltaSourceSpec(Spec):
    """A Delta table as source: a table of a pipeline of this project, or any table by URI.

    Rows become events with their columns as fields. With the change data feed, events also have the fields
    `_change_type`, `_commit_version` and `_commit_timestamp`.
    """

    kind: Annotated[Literal["delta"], CHANGES_SOURCE]
    pipeline: Annotated[Name | None, CHANGES_SOURCE] = None
    table: Annotated[Name | None, CHANGES_SOURCE] = None
    uri: Annotated[str | None, CHANGES_ADDRESS] = None
    starting_version: Annotated[int | None, FIRST_START_ONLY] = Field(default=None, ge=0)
    starting_timestamp: Annotated[str | None, FIRST_START_ONLY] = None
    skip_change_commits: Annotated[bool, NEXT_START] = False
    change_feed: Annotated[bool, CHANGES_SOURCE] = False
    max_files_per_batch: Annotated[int, NEXT_START] = Field(default=500, ge=1)
    max_bytes_per_batch: Annotated[Bytes, NEXT_START] = 256 << 20
    max_event_bytes: Annotated[Bytes, NEXT_START] = 16 << 20
    budget: BudgetSpec = BudgetSpec.defaults()
    format: Annotated[Literal["json"], CHANGES_FORMAT] = "json"

    @model_validator(mode="after")
    def _check_table(self) -> Self:
        named = self.pipeline is not None and self.table is not None
        if named == (self.uri is not None) or (self.pipeline is None) != (self.table is None):
            raise ValueError("give either pipeline and table, or uri")
        if self.starting_version is not None and self.starting_timestamp is not None:
            raise ValueError("give either starting_version or starting_timestamp")
        if self.change_feed and self.skip_change_commits:
            raise ValueError("the change data feed has every change: remove skip_change_commits")
        return self

    def display_name(self) -> str:
        """Returns the table's name or URI for messages."""
        return self.uri or f"{self.pipeline}/{self.table}"
