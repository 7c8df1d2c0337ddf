"""IP addresses in texts: their bytes, and the network that is kept of one where the address is private."""

from __future__ import annotations

import socket

#: An IPv4 address inside IPv6: `::ffff:203.0.113.7`.
_MAPPED = bytes(10) + b"\xff\xff"
#: 2002::/16 (6to4) holds an IPv4 address in the 32 bits behind it.
_SIX_TO_FOUR = b"\x20\x02"
_KEPT_OF_IPV6, _KEPT_OF_SIX_TO_FOUR, _KEPT_OF_IPV4 = 6, 5, 3


def packed(text: str) -> bytes | None:
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
        whole = socket.inet_pton(socket.AF_INET6, address)
    except (OSError, ValueError):
        return None
    return whole[12:] if whole.startswith(_MAPPED) else whole


def written(address: bytes) -> str:
    """The text of an address's bytes."""
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)


def network(address: bytes) -> bytes:
    """The address without what tells one client from its neighbours: the last octet of IPv4, the last 80 bits of IPv6.

    Of 6to4 the first 48 bits would keep the whole IPv4 address: its last octet goes too. Idempotent.
    """
    if len(address) == 4:
        kept = _KEPT_OF_IPV4
    else:
        kept = _KEPT_OF_SIX_TO_FOUR if address.startswith(_SIX_TO_FOUR) else _KEPT_OF_IPV6
    return address[:kept] + bytes(len(address) - kept)


def network_text(text: str) -> str | None:
    """The network of the address in a text; None where there is no address in it."""
    address = packed(text)
    return None if address is None else written(network(address))
