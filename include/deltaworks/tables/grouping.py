"""Rows of an Arrow table put together by the values of some columns, in one sort however many values there are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def grouped(
    rows: pa.Table, by: Sequence[str], *, most: int | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The rows' order with equal ones together, each group's in the order they had, and where in it groups begin.

    Null is a value like others. No rows have no groups.

    Args:
        most: rows of a group at most; what is larger is cut.
    """
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    for name in by:
        encoded = pc.dictionary_encode(rows.column(name).combine_chunks(), null_encoding="encode")
        indices = np.asarray(encoded.indices, dtype=np.int64)
        # Renumbered after each column, the codes stay below the number of rows and their product fits.
        _, codes = np.unique(codes * len(encoded.dictionary) + indices, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    starts = np.flatnonzero(np.append([True], sorted_codes[1:] != sorted_codes[:-1])[: len(order)])
    if most is not None and len(starts):
        ends = np.append(starts[1:], len(order))
        starts = np.concatenate([np.arange(start, end, most) for start, end in zip(starts, ends, strict=True)])
    return order, starts
