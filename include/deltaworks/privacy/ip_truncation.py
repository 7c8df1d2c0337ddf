"""Truncates IP addresses to networks, for fields with the action `truncate_ip`."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address


@lru_cache(maxsize=65_536)
def truncate_ip(address: str) -> str | None:
    """Clears the host part of an address: the last octet of IPv4, the last 80 bits of IPv6. Idempotent.

    An IPv4 address mapped to IPv6 is treated as IPv4. A 6to4 address, whose first 48 bits contain an IPv4 address,
    keeps 40 bits. In a comma-separated list, as proxies write it, only the first entry is used. Returns None if the
    text is no address.
    """
    first = address.split(",", 1)[0].strip().strip("[]").partition("%")[0]
    try:
        parsed: IPv4Address | IPv6Address = ip_address(first)
    except ValueError:
        return None
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if isinstance(parsed, IPv4Address):
        return str(IPv4Address(int(parsed) & ~0xFF))
    bits = 40 if parsed.sixtofour is not None else 48
    return str(IPv6Address(int(parsed) >> (128 - bits) << (128 - bits)))
