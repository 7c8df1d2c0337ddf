"""The place of a row: the file event or record it came from, and its position in it. Unique in a table."""

from __future__ import annotations

import pyarrow as pa

Place = tuple[int, int]
PLACE_COLUMNS = ("_seq", "_position")


def places(rows: pa.Table) -> list[Place]:
    """The place of every row."""
    return list(zip(*(rows.column(name).to_pylist() for name in PLACE_COLUMNS), strict=True))
