"""Generated network databases are readable by MaxMind's reader and contain the generated addresses."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from random import Random
from typing import Any

import maxminddb
import pytest
from maxminddb.const import MODE_FILE

from deltaworks.fixtures.mmdb import build_database
from generator.networks import ASN_DATABASE, CITY_DATABASE, NETWORKS, build_databases

AT = 1_700_000_000


def opened(folder: Path, content: bytes, mode: int = 0) -> maxminddb.Reader:
    path = folder / "a.mmdb"
    path.write_bytes(content)
    reader = maxminddb.open_database(path, mode)
    assert isinstance(reader, maxminddb.Reader | maxminddb.extension.Reader)
    return reader


def test_every_address_of_a_network_has_its_record_and_no_other_has_one(tmp_path: Path) -> None:
    contents, rng = build_databases(built_at=AT), Random(1)
    cities = opened(tmp_path, contents[CITY_DATABASE])
    for network in NETWORKS:
        inside = ipaddress.ip_network(network.cidr)
        for address in (network.random_address(rng), str(inside[0]), str(inside[-1])):
            record: Any = cities.get(address)
            assert (record["country"]["iso_code"], record["subdivisions"][0]["iso_code"]) == (
                network.country,
                network.region,
            )
    assert [cities.get(address) for address in ("8.8.8.8", "198.17.255.255", "203.0.114.0", "2001:db8::1")] == [
        None
    ] * 4
    providers: Any = opened(tmp_path, contents[ASN_DATABASE])
    assert {providers.get(network.random_address(rng))["autonomous_system_number"] for network in NETWORKS} == {
        network.asn for network in NETWORKS
    }
    assert providers.metadata().build_epoch == AT


@pytest.mark.parametrize("mode", [0, MODE_FILE])
def test_both_readers_read_values_of_every_size(tmp_path: Path, mode: int) -> None:
    records: dict[str, dict[str, Any]] = {
        "192.0.2.0/24": {"short": "a", "long": "b" * 40, "longer": "c" * 400, "small": 7, "large": 1 << 20},
        "198.51.100.128/25": {"list": ["x", {"y": 1}], "empty": ""},
        "2001:db8::/32": {},
    }

    reader = opened(tmp_path, build_database(records, kind="Test", description="a test", built_at=AT), mode)

    assert reader.get("192.0.2.200") == records["192.0.2.0/24"]
    assert reader.get("198.51.100.129") == records["198.51.100.128/25"]
    assert reader.get("198.51.100.127") is None
    assert reader.get("2001:db8:ffff::1") == {}
    assert (reader.metadata().ip_version, reader.metadata().database_type) == (6, "Test")


@pytest.mark.parametrize("second", ["192.0.2.0/25", "192.0.2.7/32", "192.0.0.0/16"])
def test_a_network_within_another_is_refused(second: str) -> None:
    with pytest.raises(ValueError, match="another network"):
        build_database({"192.0.2.0/24": {}, second: {}}, kind="Test", description="", built_at=AT)


def test_a_value_of_an_unsupported_type_is_rejected() -> None:
    with pytest.raises(ValueError, match="unsupported record value"):
        build_database({"192.0.2.0/24": {"a": 1.5}}, kind="Test", description="", built_at=AT)
