"""Parquet row groups parsed from the footer, compared with Arrow, and invalid footers."""

from __future__ import annotations

import contextlib
import decimal
import io
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.events.formats.parquet import RowGroup, read_row_groups

NESTED = pa.table(
    {
        "name": ["ann", None, "bob", "b" * 300] * 50,
        "at": pa.array(range(200), pa.timestamp("us", tz="UTC")),
        "price": [decimal.Decimal(number) / 100 for number in range(200)],
        "tags": [["a"] * (number % 5) for number in range(200)],
        "place": [{"x": number, "y": {"z": [number] * 3}} for number in range(200)],
        "counts": pa.array([[("k", number)] for number in range(200)], pa.map_(pa.string(), pa.int64())),
        "right": [number % 2 == 0 for number in range(200)],
        "empty": pa.nulls(200),
    }
)
WIDE = pa.table({f"column_{number}": [number] * 20 for number in range(300)})


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def as_arrow_reads(payload: bytes) -> list[RowGroup]:
    metadata = pq.ParquetFile(io.BytesIO(payload)).metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return [
        RowGroup(
            rows=group.num_rows,
            values=sum(group.column(number).num_values for number in range(group.num_columns)),
            bytes=group.total_byte_size,
        )
        for group in groups
    ]


@pytest.mark.parametrize("table", [NESTED, WIDE, NESTED.slice(0, 0)], ids=["nested", "wide", "empty"])
@pytest.mark.parametrize(
    "options",
    [
        {"row_group_size": 7},
        {"compression": "zstd", "use_dictionary": False, "write_statistics": False},
        {"version": "1.0", "write_page_index": True, "store_schema": False},
        {"write_page_checksum": True, "data_page_version": "2.0"},
    ],
    ids=["groups", "no_statistics", "page_index", "version_2"],
)
def test_groups_are_those_that_arrow_reads(table: pa.Table, options: dict[str, Any]) -> None:
    payload = written(table, **options)

    assert read_row_groups(payload) == as_arrow_reads(payload)


@given(data=st.data())
def test_random_footer_bytes_parse_or_raise_value_error(data: st.DataObject) -> None:
    payload = bytearray(written(NESTED.slice(0, 20), row_group_size=5))
    length = int.from_bytes(payload[-8:-4], "little")
    for _ in range(data.draw(st.integers(1, 8))):
        payload[data.draw(st.integers(-8 - length, -1))] = data.draw(st.integers(0, 255))

    groups: list[RowGroup] = []
    with contextlib.suppress(ValueError):
        groups = read_row_groups(bytes(payload))

    assert all(min(group.rows, group.values, group.bytes) >= 0 for group in groups)


@pytest.mark.parametrize(
    ("footer", "what"),
    [
        (b"", "truncated"),
        (b"\x19", "truncated"),
        (b"\x49\xfc\xff\xff\xff\xff\x0f", "truncated"),
        (b"\x1c" * 100 + b"\x00" * 100, "nested more than 64 deep"),
        (b"\x1e\x00", "of type 14"),
        (b"\x16" + b"\xff" * 11, "more than ten bytes"),
    ],
)
def test_an_invalid_footer_raises_with_the_reason(footer: bytes, what: str) -> None:
    payload = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"

    with pytest.raises(ValueError, match=what):
        read_row_groups(payload)


def test_an_invalid_footer_offset_raises() -> None:
    for payload in (b"PAR1", b"PAR1" + (99).to_bytes(4, "little") + b"PAR1"):
        with pytest.raises(ValueError, match="the footer's offset"):
            read_row_groups(payload)


def test_arrow_aborts_the_process_on_inconsistent_column_metadata() -> None:
    """Why this is read without Arrow; where it no longer ends, Arrow's accessors can be used again."""
    payload = written(pa.table({"a": ["x", None]}), compression="none")
    broken = _with_one_level_too_many(payload)
    script = "import io, sys, pyarrow.parquet as pq; pq.ParquetFile(io.BytesIO(sys.stdin.buffer.read())).metadata"

    words = [sys.executable, "-c", script + ".row_group(0).column(0)"]
    ends = subprocess.run(words, input=broken, capture_output=True, check=False)

    assert ends.returncode < 0, ends
    assert read_row_groups(broken) == read_row_groups(payload)


def _with_one_level_too_many(payload: bytes) -> bytes:
    """The object, its column's histogram of levels one longer than its schema has levels."""
    # Field 3 of the statistics of sizes: a list of two integers, how many rows have no value and one.
    histogram = b"\x19\x26\x02\x02"
    assert payload.count(histogram) == 1
    longer = payload.replace(histogram, b"\x19\x36\x02\x02\x00")
    length = int.from_bytes(payload[-8:-4], "little") + 1
    return longer[:-8] + length.to_bytes(4, "little") + b"PAR1"


def test_a_field_of_type_0_ends_its_struct() -> None:
    payload = written(NESTED)
    logical_string = b"\x4c\x1c\x00\x00"
    start = payload.index(logical_string, len(payload) - int.from_bytes(payload[-8:-4], "little") - 8)
    damaged = payload[: start + 3] + b"\x80" + payload[start + 4 :]

    assert damaged != payload
    assert read_row_groups(damaged) == as_arrow_reads(damaged) == read_row_groups(payload)
