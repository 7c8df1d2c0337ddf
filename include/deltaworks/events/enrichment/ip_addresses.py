"""IP addresses: parsing, formatting, and truncation to networks for private fields."""

from __future__ import annotations

import socket

#: Prefix of an IPv4 address mapped to IPv6: `::ffff:203.0.113.7`.
_IPV4_MAPPED_PREFIX = bytes(10) + b"\xff\xff"
#: 2002::/16 (6to4) contains an IPv4 address in the next 32 bits.
_6TO4_PREFIX = b"\x20\x02"
_IPV6_NETWORK_BYTES, _6TO4_NETWORK_BYTES, _IPV4_NETWORK_BYTES = 6, 5, 3


def parse_ip(text: str) -> bytes | None:
    """Parses an IP address: 4 bytes for IPv4, also if it is mapped to IPv6, 16 for IPv6; None if it is invalid.

    Proxies write comma-separated lists; the first entry counts. A zone (`fe80::1%eth0`) is ignored.
    """
    first = text.split(",", 1)[0].strip()
    address, percent, zone = first.partition("%")
    try:
        if ":" not in address:
            return None if percent else socket.inet_pton(socket.AF_INET, address)
        if percent and (not zone or "%" in zone):
            return None
        address_bytes = socket.inet_pton(socket.AF_INET6, address)
    except (OSError, ValueError):
        return None
    return address_bytes[12:] if address_bytes.startswith(_IPV4_MAPPED_PREFIX) else address_bytes


def format_ip(address: bytes) -> str:
    """Returns the text of an address."""
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)


def truncate_ip(address: bytes) -> bytes:
    """Clears the host part of an address: the last octet of IPv4, the last 80 bits of IPv6. Idempotent.

    The first 48 bits of a 6to4 address contain the complete IPv4 address, so its last octet is cleared too.
    """
    if len(address) == 4:
        network_bytes = _IPV4_NETWORK_BYTES
    else:
        network_bytes = _6TO4_NETWORK_BYTES if address.startswith(_6TO4_PREFIX) else _IPV6_NETWORK_BYTES
    return address[:network_bytes] + bytes(len(address) - network_bytes)


def truncate_ip_text(text: str) -> str | None:
    """Returns the truncated address of a text; None if it is no address."""
    address = parse_ip(text)
    return None if address is None else format_ip(truncate_ip(address))
