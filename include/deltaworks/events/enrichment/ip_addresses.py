"""IP addresses in texts: their bytes, and the network that is kept of one where the address is private."""

from __future__ import annotations

import socket

#: An IPv4 address inside IPv6: `::ffff:203.0.113.7`.
_IPV4_MAPPED_PREFIX = bytes(10) + b"\xff\xff"
#: 2002::/16 (6to4) holds an IPv4 address in the 32 bits behind it.
_6TO4_PREFIX = b"\x20\x02"
_IPV6_NETWORK_BYTES, _6TO4_NETWORK_BYTES, _IPV4_NETWORK_BYTES = 6, 5, 3


def parse_ip(text: str) -> bytes | None:
    """The bytes of the address in a text: 4 of IPv4, also where it is mapped into IPv6, or 16; None where it is none.

    Of a list, as proxies write it, the first entry counts. The zone of an address (`fe80::1%eth0`) is no part of it.
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
    """The text of an address's bytes."""
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)


def truncate_ip(address: bytes) -> bytes:
    """The address without what tells one client from its neighbours: the last octet of IPv4, the last 80 bits of IPv6.

    Of 6to4 the first 48 bits would keep the whole IPv4 address: its last octet goes too. Idempotent.
    """
    if len(address) == 4:
        kept = _IPV4_NETWORK_BYTES
    else:
        kept = _6TO4_NETWORK_BYTES if address.startswith(_6TO4_PREFIX) else _IPV6_NETWORK_BYTES
    return address[:kept] + bytes(len(address) - kept)


def truncate_ip_text(text: str) -> str | None:
    """The network of the address in a text; None where there is no address in it."""
    address = parse_ip(text)
    return None if address is None else format_ip(truncate_ip(address))
