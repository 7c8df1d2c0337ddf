"""Payload formats of objects and records."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from deltaworks.specs.base import Bytes, Spec
from deltaworks.specs.spec_change_effects import CHANGES_FORMAT, CHANGES_PARSING, NEXT_START

Compression = Literal["auto", "gzip", "bzip2", "zstd", "none"]
#: Formats whose fields are all strings. They are converted to the types of columns.
TEXT_FORMATS = ("csv", "tsv", "text")


class CsvSpec(Spec):
    """CSV format. Field names come from the header, or are declared."""

    delimiter: str = Field(default=",", min_length=1, max_length=1)
    quote: str = Field(default='"', min_length=1, max_length=1)
    header: bool = True
    columns: tuple[str, ...] = ()
    null_values: tuple[str, ...] = ("",)

    # A tab is a delimiter and must not be stripped.
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=False)

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if self.header == bool(self.columns):
            raise ValueError("declare columns only with header: false; otherwise the header has the names")
        if len(set(self.columns)) < len(self.columns):
            raise ValueError("a column is named twice")
        return self


class TsvSpec(Spec):
    """Lines of tab-separated fields. Field names come from the preceding `#Fields:` line, or are declared."""

    columns: tuple[str, ...] = ()
    null_values: tuple[str, ...] = ("-",)


class BudgetSpec(Spec):
    """Limits of the resources that parsing a payload may use. Events beyond a limit are quarantined.

    Limits are counts and sizes, not times, so that the same payload always gives the same rows. Memory is estimated.
    """

    max_scans: Annotated[int, NEXT_START] = Field(
        default=20, ge=2, description="average number of passes over a payload's bytes"
    )
    max_records: Annotated[int | None, NEXT_START] = Field(
        default=None, ge=1, description="events per payload; by default depends on its size, up to 10,000,000"
    )
    max_values: Annotated[int | None, NEXT_START] = Field(
        default=None,
        ge=1,
        description="field values per payload; by default depends on its size, up to 1,000,000,000",
    )
    max_decoded_bytes: Annotated[Bytes, NEXT_START] = Field(
        default=2 << 30, description="memory of values that are decoded at the same time"
    )
    max_partitions: Annotated[int, NEXT_START] = Field(
        default=1_000, ge=1, description="partitions of a table per task and batch"
    )


class PayloadSpec(Spec):
    """The format of the events in an object or record."""

    format: Annotated[Literal["json", "csv", "tsv", "text", "parquet", "avro"], CHANGES_FORMAT] = "json"
    csv: Annotated[CsvSpec, CHANGES_PARSING] = CsvSpec.defaults()
    tsv: Annotated[TsvSpec, CHANGES_PARSING] = TsvSpec.defaults()
    pattern: Annotated[str | None, CHANGES_PARSING] = None
    compression: Annotated[Compression, NEXT_START] = "auto"
    max_event_bytes: Annotated[Bytes, NEXT_START] = 16 << 20
    budget: BudgetSpec = BudgetSpec.defaults()

    @model_validator(mode="after")
    def _check_pattern(self) -> Self:
        if (self.format == "text") != (self.pattern is not None):
            raise ValueError("format: text needs a pattern, and no other format has one")
        if self.pattern is not None:
            try:
                groups = re.compile(self.pattern).groupindex
            except re.error as error:
                raise ValueError(f"the pattern is not a regular expression: {error}") from None
            if not groups:
                raise ValueError("name the fields in the pattern, such as (?P<time>\\S+)")
        return self


class RecordSourceSpec(PayloadSpec):
    """A stream of records, each of which is a payload.

    Paths starting with `_record.` read record metadata (`key`, `headers`, `timestamp`, ...).
    """

    tombstones: Annotated[Literal["quarantine", "event"], NEXT_START] = "quarantine"

    @model_validator(mode="after")
    def _check_record_format(self) -> Self:
        if self.format == "csv" and self.csv.header:
            raise ValueError("a record has no header line: declare csv with header: false and its columns")
        if self.format == "tsv" and not self.tsv.columns:
            raise ValueError("a record has no #Fields line: declare the columns of tsv")
        if self.format in ("parquet", "avro"):
            raise ValueError(f"{self.format} is a format of objects, not of records")
        return self
