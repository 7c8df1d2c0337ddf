"""Fictitious provider networks in reserved ranges (RFC 2544, RFC 5737, RFC 3849), and MaxMind databases for them.

They replace a real database: generated viewers use these networks, so the expected results have countries, regions and
providers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from deltaworks.fixtures.mmdb import build_database

CITY_DATABASE, ASN_DATABASE = "geo/GeoLite2-City.mmdb", "geo/GeoLite2-ASN.mmdb"
_DESCRIPTION = "Invented networks of Deltaworks, in ranges that are kept for tests"


@dataclass(frozen=True, slots=True)
class Network:
    """A network with its database values, and the edge location that serves it."""

    cidr: str
    country: str
    region: str
    asn: int
    isp: str
    edge: str

    def random_address(self, rng: Random) -> str:
        """Returns a random address of the network."""
        network = ipaddress.ip_network(self.cidr)
        return str(network[1 + rng.randrange(min(network.num_addresses, 1 << 24) - 2)])


NETWORKS = (
    Network("198.18.0.0/18", "DE", "HE", 64_496, "Rhein Kabel", "FRA56-C1"),
    Network("198.18.64.0/18", "DE", "BE", 64_497, "Spree Netz", "TXL50-P2"),
    Network("198.18.128.0/18", "GB", "ENG", 64_498, "Thames Fibre", "LHR62-C3"),
    Network("198.19.0.0/17", "GB", "SCT", 64_499, "Highland Broadband", "MAN51-P1"),
    Network("203.0.113.0/24", "FR", "IDF", 64_500, "Seine Mobile", "CDG52-P4"),
    Network("2001:db8:4000::/36", "NL", "NH", 64_501, "Amstel Glas", "AMS58-P1"),
)


def build_databases(*, built_at: int) -> dict[str, bytes]:
    """Returns each database's bytes by its key below `databases/` of a lake; `built_at` is in epoch seconds."""
    cities: Mapping[str, Mapping[str, Any]] = {
        network.cidr: {
            "country": {"iso_code": network.country},
            "subdivisions": [{"iso_code": network.region}],
        }
        for network in NETWORKS
    }
    providers: Mapping[str, Mapping[str, Any]] = {
        network.cidr: {
            "autonomous_system_number": network.asn,
            "autonomous_system_organization": network.isp,
        }
        for network in NETWORKS
    }
    return {
        CITY_DATABASE: build_database(cities, kind="Deltaworks-City", description=_DESCRIPTION, built_at=built_at),
        ASN_DATABASE: build_database(providers, kind="Deltaworks-ASN", description=_DESCRIPTION, built_at=built_at),
    }
