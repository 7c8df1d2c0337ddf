"""Networks of IP addresses: what is kept of one that may not be kept whole."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address


@lru_cache(maxsize=65_536)
def truncate_ip(address: str) -> str | None:
    """An address without the part that is a household's: the last octet of IPv4, the last 80 bits of IPv6.

    IPv4 within IPv6 counts as IPv4. Of 6to4, whose first 48 bits hold an address of IPv4, 40 bits stay. Of a list, as
    proxies write it, the first entry counts. Idempotent; None where there is no address.
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
