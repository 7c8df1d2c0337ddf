"""A simple encoder of deletion vectors, following the Delta protocol and the RoaringFormatSpec literally."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Literal

Kind = Literal["array", "bits", "runs"]
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def encode_vector(positions: Collection[int], *, runs: bool = False) -> bytes:
    """Encodes a vector of these positions; `runs` uses run containers where possible."""
    highs = sorted({position >> 32 for position in positions})
    data = struct.pack("<iq", 1681511377, len(highs))
    for high in highs:
        low = sorted(position & 0xFFFF_FFFF for position in positions if position >> 32 == high)
        data += struct.pack("<I", high) + _bitmap(low, runs)
    return data


def _bitmap(values: Sequence[int], runs: bool) -> bytes:
    groups = [(key, [value & 0xFFFF for value in group]) for key, group in groupby(values, lambda value: value >> 16)]
    kinds: list[Kind] = [
        "runs" if runs and index % 2 == 0 else _encode_plain(group) for index, (_, group) in enumerate(groups)
    ]
    heads = b"".join(struct.pack("<HH", key, len(group) - 1) for key, group in groups)
    bodies = [_container(group, kind) for (_, group), kind in zip(groups, kinds, strict=True)]
    if "runs" in kinds:
        flags = sum(1 << index for index, kind in enumerate(kinds) if kind == "runs")
        start = struct.pack("<I", 12347 | (len(groups) - 1) << 16) + flags.to_bytes((len(groups) + 7) // 8, "little")
        offsets = len(groups) >= 4
    else:
        start, offsets = struct.pack("<II", 12346, len(groups)), True
    at = len(start) + len(heads) + 4 * len(groups)
    table = b""
    for body in bodies:
        table += struct.pack("<I", at)
        at += len(body)
    return start + heads + (table if offsets else b"") + b"".join(bodies)


def _encode_plain(values: Sequence[int]) -> Kind:
    return "array" if len(values) <= 4096 else "bits"


def _container(values: Sequence[int], kind: Kind) -> bytes:
    if kind == "array":
        return struct.pack(f"<{len(values)}H", *values)
    if kind == "bits":
        return sum(1 << value for value in values).to_bytes(8192, "little")
    runs: list[list[int]] = []
    for value in values:
        if runs and sum(runs[-1]) + 1 == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 0])
    return struct.pack("<H", len(runs)) + b"".join(struct.pack("<HH", *run) for run in runs)


def z85(data: bytes) -> str:
    """Encodes bytes in Z85 (ZeroMQ RFC 32), padded with zeros to multiples of four."""
    text = ""
    for start in range(0, len(data), 4):
        number = int.from_bytes(data[start : start + 4].ljust(4, b"\0"), "big")
        letters = ""
        for _ in range(5):
            number, rest = divmod(number, 85)
            letters = _Z85[rest] + letters
        text += letters
    return text


def in_file(*vectors: bytes) -> tuple[bytes, list[int]]:
    """Returns a file of vectors, and the offset of each."""
    data, offsets = b"\x01", []
    for vector in vectors:
        offsets.append(len(data))
        data += struct.pack(">i", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
    return data, offsets
