"""Writes databases in MaxMind's format (MaxMind DB File Format Specification 2.0): a binary tree over address bits
whose leaves point to records.

Meant for small generated databases: records are not deduplicated.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Mapping
from typing import Any

_MARKER = b"\xab\xcd\xefMaxMind.com"
_SEPARATOR = bytes(16)
_RECORD_BITS = 24
_STRING, _UINT16, _UINT32, _MAP, _UINT64, _ARRAY = 2, 5, 6, 7, 9, 11
#: Type numbers above this one are encoded with an extra byte.
_LAST_SHORT_TYPE = 7
_MAX_INLINE_SIZE, _MAX_ONE_BYTE_SIZE = 29, 29 + 256


def build_database(networks: Mapping[str, Mapping[str, Any]], *, kind: str, description: str, built_at: int) -> bytes:
    """Returns the bytes of a database of IPv4 and IPv6 networks, with records of maps, lists, strings and integers.

    Args:
        built_at: build time in the metadata, in epoch seconds.

    Raises:
        ValueError: a network lies within another one, or the database exceeds 16 MiB.
    """
    nodes: list[list[int | None]] = [[None, None]]
    records = bytearray()
    leaves: list[tuple[int, int, int]] = []
    for cidr, record in networks.items():
        node, bit = _add_network(nodes, cidr)
        if nodes[node][bit] is not None:
            raise ValueError(f"{cidr} lies within another network, or holds one")
        nodes[node][bit] = -1
        leaves.append((node, bit, len(records)))
        records += _encode(record)
    for node, bit, offset in leaves:
        nodes[node][bit] = len(nodes) + len(_SEPARATOR) + offset
    if len(nodes) + len(_SEPARATOR) + len(records) >= 1 << _RECORD_BITS:
        raise ValueError("database exceeds the 24-bit address space")
    tree = b"".join(
        (len(nodes) if branch is None else branch).to_bytes(_RECORD_BITS // 8, "big")
        for node in nodes
        for branch in node
    )
    metadata = _encode(
        {
            "binary_format_major_version": 2,
            "binary_format_minor_version": 0,
            "build_epoch": _Uint64(built_at),
            "database_type": kind,
            "description": {"en": description},
            "ip_version": 6,
            "languages": ["en"],
            "node_count": _Uint32(len(nodes)),
            "record_size": _RECORD_BITS,
        }
    )
    return tree + _SEPARATOR + bytes(records) + _MARKER + metadata


class _Uint32(int):
    """An integer encoded with 32 bits."""


class _Uint64(int):
    """An integer encoded with 64 bits."""


def _add_network(nodes: list[list[int | None]], cidr: str) -> tuple[int, int]:
    """Adds the nodes of a network. Returns the node and branch at which the network ends. IPv4 networks are stored
    below 96 zero bits.
    """
    network = ipaddress.ip_network(cidr)
    length = network.prefixlen + (96 if network.version == 4 else 0)
    bits = f"{int(network.network_address):0128b}"[:length]
    node = 0
    for bit in map(int, bits[:-1]):
        child = nodes[node][bit]
        if child == -1:
            raise ValueError(f"{cidr} lies within another network")
        if child is None:
            child = nodes[node][bit] = len(nodes)
            nodes.append([None, None])
        node = child
    return node, int(bits[-1])


def _encode(value: Any) -> bytes:
    match value:
        case str():
            text = value.encode()
            return _control_bytes(_STRING, len(text)) + text
        case _Uint64():
            return _control_bytes(_UINT64, 8) + struct.pack(">Q", value)
        case _Uint32():
            return _control_bytes(_UINT32, 4) + struct.pack(">I", value)
        case int():
            kind, number = (
                (_UINT16, struct.pack(">H", value)) if value < 1 << 16 else (_UINT32, struct.pack(">I", value))
            )
            return _control_bytes(kind, len(number)) + number
        case Mapping():
            pairs = b"".join(_encode(name) + _encode(member) for name, member in value.items())
            return _control_bytes(_MAP, len(value)) + pairs
        case list() | tuple():
            return _control_bytes(_ARRAY, len(value)) + b"".join(map(_encode, value))
    raise ValueError(f"unsupported record value {value!r}")


def _control_bytes(kind: int, size: int) -> bytes:
    """Returns the control byte with type and size of a field, and extension bytes for large values."""
    extended = b"" if kind <= _LAST_SHORT_TYPE else bytes([kind - _LAST_SHORT_TYPE])
    first = kind << 5 if kind <= _LAST_SHORT_TYPE else 0
    if size < _MAX_INLINE_SIZE:
        return bytes([first | size]) + extended
    if size < _MAX_ONE_BYTE_SIZE:
        return bytes([first | 29]) + extended + bytes([size - _MAX_INLINE_SIZE])
    return bytes([first | 30]) + extended + (size - _MAX_ONE_BYTE_SIZE).to_bytes(2, "big")
