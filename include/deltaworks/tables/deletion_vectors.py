"""Reads deletion vectors without a JVM: row positions from a vector, and counts of deleted rows from the log alone.

A vector is a series of Roaring bitmaps, one per 2^32 positions, stored in a file or, encoded in Z85, in the log.
Formats: Delta protocol ("Deletion Vector Format") and RoaringFormatSpec. `DeltaTable.deletion_vectors` of delta-rs
cannot replace this module: it returns a value per row for all files of the table at once. For 50 files of 5 million
rows it took 3.5 s and 500 MB, this module 1 ms.

deltalake lists a table's files without their deletion vectors. So tables with this feature are counted here: the last
checkpoint and the commits after it.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from deltalake import DeltaTable

from deltaworks.errors import ContractError
from deltaworks.tables.features import has_deletion_vectors
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action, checkpoint_actions, read_commits
from deltaworks.tables.protected_files import decode_z85, deletion_vector_path

_CHECKPOINT_COLUMNS = ("add.path", "add.deletionVector.storageType", "add.deletionVector.cardinality")


def deleted_row_counts(
    lake: Lake, key: str, table: DeltaTable, *, checkpoint: Mapping[str, Any] | None
) -> dict[str, int] | None:
    """Returns the number of deleted rows by file path, at the open version. Files without deleted rows are omitted.

    Paths are URL-encoded as in the log and in deltalake's results. Returns None if a commit after the last checkpoint
    is missing, or the checkpoint itself.

    Args:
        checkpoint: content of `_last_checkpoint`.
    """
    if not has_deletion_vectors(table):
        return {}
    newest = table.version()
    if checkpoint is not None and int(checkpoint["version"]) > newest:
        checkpoint = None
    counts: dict[str, int] = {}
    if checkpoint is not None:
        names = [f"{key}/_delta_log/{name}" for name in _checkpoint_files(checkpoint)]
        try:
            for action in checkpoint_actions(lake, key, names, columns=_CHECKPOINT_COLUMNS):
                _apply_actions(counts, [action])
        except FileNotFoundError:
            return None
    checkpoint_version = int(checkpoint["version"]) if checkpoint is not None else -1
    for _, actions in read_commits(lake, key, range(checkpoint_version + 1, newest + 1)):
        if actions is None:
            return None
        _apply_actions(counts, actions)
    return counts


def read_last_checkpoint(lake: Lake, key: str) -> dict[str, Any] | None:
    """Reads `_last_checkpoint`. Returns None if it is missing or incomplete; the caller then lists the log."""
    path = f"{arrow_path(lake.storage, key)}/_delta_log/_last_checkpoint"
    try:
        with lake.filesystem.open_input_stream(path) as stream:
            checkpoint = json.loads(stream.read())
    except (FileNotFoundError, ValueError):
        return None
    return checkpoint if isinstance(checkpoint, dict) and "version" in checkpoint else None


def _apply_actions(counts: dict[str, int], actions: list[Action]) -> None:
    # A DELETE removes a file and adds it with a larger vector in one commit; the order of the two actions is undefined.
    for action in actions:
        if "remove" in action:
            counts.pop(action["remove"]["path"], None)
    for action in actions:
        if "add" in action:
            vector = action["add"].get("deletionVector") or {}
            if count := int(vector.get("cardinality") or 0):
                counts[action["add"]["path"]] = count
            else:
                counts.pop(action["add"]["path"], None)


def _checkpoint_files(checkpoint: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of the checkpoint's files, without its sidecars."""
    version, parts = int(checkpoint["version"]), checkpoint.get("parts")
    v2_checkpoint = checkpoint.get("v2Checkpoint")
    if v2_checkpoint is not None:
        yield v2_checkpoint["path"]
    elif parts:
        yield from (f"{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1))
    else:
        yield f"{version:020d}.checkpoint.parquet"


_MAGIC: Final = 1681511377
_COOKIE_PLAIN, _COOKIE_RUNS = 12346, 12347
_MIN_CONTAINERS_WITH_OFFSETS: Final = 4
_MAX_ARRAY_CARDINALITY: Final = 4096
Positions = npt.NDArray[np.int64]


def deleted_positions(lake: Lake, key: str, added: Action) -> Positions:
    """Returns the positions of the rows that an add action's deletion vector deletes, ascending from 0; empty without
    one.

    Raises:
        ContractError: DELETION_VECTOR_UNREADABLE.
    """
    vector = added.get("deletionVector")
    if not vector:
        return np.zeros(0, dtype=np.int64)
    try:
        positions = decode_vector(_read_vector(lake, key, vector))
    except (struct.error, ValueError, OverflowError, OSError) as error:
        raise _unreadable_vector_error(key, added, str(error)) from error
    if len(positions) != int(vector["cardinality"]):
        raise _unreadable_vector_error(
            key, added, f"it deletes {len(positions)} rows, but the log has {vector['cardinality']}"
        )
    return positions


def decode_vector(data: bytes) -> Positions:
    """Decodes a serialized deletion vector to row positions.

    Raises:
        ValueError, struct.error: the vector is damaged.
    """
    magic, count = struct.unpack_from("<iq", data, 0)
    if magic != _MAGIC:
        raise ValueError(f"it begins with {magic}")
    at, parts = 12, [np.zeros(0, dtype=np.int64)]
    for _ in range(count):
        (high,) = struct.unpack_from("<I", data, at)
        low, at = _decode_bitmap(data, at + 4)
        parts.append(low + (high << 32))
    return np.concatenate(parts)


def _decode_bitmap(data: bytes, at: int) -> tuple[Positions, int]:
    """Returns the values of the 32-bit bitmap at an offset, and the bitmap's end offset."""
    (cookie,) = struct.unpack_from("<I", data, at)
    runs: npt.NDArray[np.uint8] | None = None
    if cookie & 0xFFFF == _COOKIE_RUNS:
        size = (cookie >> 16) + 1
        width = (size + 7) // 8
        runs = np.unpackbits(np.frombuffer(data, np.uint8, width, at + 4), bitorder="little")
        at += 4 + width
    elif cookie == _COOKIE_PLAIN:
        (size,) = struct.unpack_from("<I", data, at + 4)
        at += 8
    else:
        raise ValueError(f"a bitmap begins with {cookie}")
    headers = np.frombuffer(data, "<u2", 2 * size, at).reshape(size, 2).astype(np.int64)
    at += 4 * size
    if runs is None or size >= _MIN_CONTAINERS_WITH_OFFSETS:
        at += 4 * size
    values = [np.zeros(0, dtype=np.int64)]
    for index, (high, cardinality_minus_one) in enumerate(headers.tolist()):
        low, at = _decode_container(data, at, cardinality_minus_one + 1, is_run=runs is not None and bool(runs[index]))
        values.append(low + (high << 16))
    return np.concatenate(values), at


def _decode_container(data: bytes, at: int, cardinality: int, *, is_run: bool) -> tuple[Positions, int]:
    if is_run:
        (count,) = struct.unpack_from("<H", data, at)
        pairs = np.frombuffer(data, "<u2", 2 * count, at + 2).reshape(count, 2).astype(np.int64)
        ranges = [np.arange(first, first + length + 1) for first, length in pairs.tolist()]
        return np.concatenate([np.zeros(0, dtype=np.int64), *ranges]), at + 2 + 4 * count
    if cardinality <= _MAX_ARRAY_CARDINALITY:
        return np.frombuffer(data, "<u2", cardinality, at).astype(np.int64), at + 2 * cardinality
    bits = np.unpackbits(np.frombuffer(data, np.uint8, 8192, at), bitorder="little")
    return np.flatnonzero(bits).astype(np.int64), at + 8192


def _read_vector(lake: Lake, key: str, vector: Action) -> bytes:
    """Reads the serialized vector from its file, or from the log if it is stored inline."""
    if vector["storageType"] == "i":
        return decode_z85(vector["pathOrInlineDv"])[: int(vector["sizeInBytes"])]
    if vector["storageType"] != "u":
        raise ValueError("it has an absolute path")
    path = f"{arrow_path(lake.storage, key)}/{deletion_vector_path(vector['pathOrInlineDv'])}"
    with lake.filesystem.open_input_file(path) as source:
        source.seek(int(vector.get("offset") or 0))
        (length,) = struct.unpack(">i", source.read(4))
        data = bytes(source.read(length))
        (checksum,) = struct.unpack(">I", source.read(4))
    if zlib.crc32(data) != checksum:
        raise ValueError("its checksum does not match")
    return data


def _unreadable_vector_error(key: str, added: Action, reason: str) -> ContractError:
    return ContractError(
        "DELETION_VECTOR_UNREADABLE", f"The deletion vector of {key}/{added['path']} cannot be read: {reason}."
    )
