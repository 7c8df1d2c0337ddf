"""Look-up databases: results, version pinning, and errors for corrupt files."""

from __future__ import annotations

import ipaddress
import json
import os
import pickle
from pathlib import Path

import maxminddb
import pytest

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ConfigError, TransientError
from deltaworks.events import lookup_databases as module
from deltaworks.events.lookup_databases import AddressLookup, PinnedDatabases
from deltaworks.privacy.tokens.redactor import format_ip, parse_ip, truncate_ip
from deltaworks.specs.storage import StorageSpec
from deltaworks.testing import local_storage, present
from tests.shared_data import SHARED_DATA

MAXMIND = SHARED_DATA / "maxmind"
CITY, ASN = MAXMIND / "GeoLite2-City-Test.mmdb", MAXMIND / "GeoLite2-ASN-Test.mmdb"
pytestmark = pytest.mark.skipif(
    not CITY.exists(), reason=f"no databases at {MAXMIND}; name their folder in DELTAWORKS_SHARED_DATA"
)


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StorageSpec:
    """An empty lake, and an empty disk of a worker."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    module._warn_once.cache_clear()
    return local_storage(tmp_path / "lake")


def put(storage: StorageSpec, data: bytes, name: str = "geo/City.mmdb") -> str:
    """Put a database; its ETag."""
    objects = LocalObjects(Path(storage.prefix))
    objects.put(paths.database(name), data)
    return present(objects.etag(paths.database(name)))


def fix(storage: StorageSpec, name: str = "geo/City.mmdb") -> PinnedDatabases:
    return PinnedDatabases.pin([name], storage)


def sources() -> list[str]:
    return sorted(path.stem for path in (MAXMIND / "source-data").glob("*.json"))


def test_every_network_of_every_database_gives_its_record(storage: StorageSpec) -> None:
    networks = same = 0
    for name in sources():
        put(storage, (MAXMIND / f"{name}.mmdb").read_bytes(), f"{name}.mmdb")
        reader = fix(storage, f"{name}.mmdb").open_lookup(f"{name}.mmdb")
        for item in json.loads((MAXMIND / "source-data" / f"{name}.json").read_text()):
            for network, record in item.items():
                address = present(parse_ip(str(ipaddress.ip_network(network, strict=False)[0])))
                networks += 1
                same += reader.lookup(format_ip(address)) == record

    assert (networks, same) == (4_073, 4_073)


def test_masked_addresses_have_other_results_so_lookups_come_first(storage: StorageSpec) -> None:
    put(storage, (MAXMIND / "GeoIP2-ISP-Test.mmdb").read_bytes())
    reader = fix(storage).open_lookup("geo/City.mmdb")
    networks = [
        network
        for item in json.loads((MAXMIND / "source-data" / "GeoIP2-ISP-Test.json").read_text())
        for network in item
    ]
    firsts = [str(ipaddress.ip_network(network, strict=False)[0]) for network in networks]

    changed = sum(reader.lookup(first) != reader.lookup(truncate_ip(first) or "") for first in firsts)

    assert (changed, len(firsts)) == (1_879, 2_109)


def test_a_parse_uses_the_pinned_version(storage: StorageSpec) -> None:
    first = put(storage, CITY.read_bytes())
    fixed = fix(storage)
    second = put(storage, ASN.read_bytes())

    travelled = pickle.loads(pickle.dumps(fixed))

    assert travelled.ledger_entries() == [
        {"database": "geo/City.mmdb", "etag": first, "build_epoch": fixed.ledger_entries()[0]["build_epoch"]}
    ]
    assert "city" in (travelled.open_lookup("geo/City.mmdb").lookup("81.2.69.142") or {})
    assert fix(storage).ledger_entries()[0]["etag"] == second


def test_a_worker_without_a_copy_of_the_pinned_version_uses_no_other(
    storage: StorageSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(storage, CITY.read_bytes())
    fixed = fix(storage)
    put(storage, ASN.read_bytes())
    other_worker = tmp_path / "other"
    other_worker.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(other_worker))

    with pytest.raises(TransientError, match="ENRICHMENT_REPLACED"):
        fixed.open_lookup("geo/City.mmdb")


def test_a_missing_database_is_refused(storage: StorageSpec) -> None:
    with pytest.raises(ConfigError, match=r"ENRICHMENT_UNREADABLE.*the object is missing"):
        fix(storage)


def test_an_ipv4_database_has_no_result_for_ipv6(storage: StorageSpec) -> None:
    put(storage, (MAXMIND / "edge" / "MaxMind-DB-test-ipv4-24.mmdb").read_bytes())

    assert fix(storage).open_lookup("geo/City.mmdb").lookup("2001:db8::1") is None


def test_an_outdated_database_is_logged_once(storage: StorageSpec, caplog: pytest.LogCaptureFixture) -> None:
    put(storage, CITY.read_bytes())

    fix(storage)
    fix(storage)

    assert [record.getMessage().split(" was built")[0][:22] for record in caplog.records] == ["database=geo/City.mmdb"]


def test_a_slow_reader_is_logged(
    storage: StorageSpec, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maxminddb, "_extension", None)
    module._reader.cache_clear()
    put(storage, CITY.read_bytes())

    fix(storage)

    assert any("Python code" in record.getMessage() for record in caplog.records)


def test_unused_copies_are_deleted_from_disk(storage: StorageSpec, tmp_path: Path) -> None:
    put(storage, CITY.read_bytes())
    fix(storage)
    (copy,) = (tmp_path / f"deltaworks-databases-{os.getuid()}").iterdir()
    os.utime(copy, (0, 0))

    put(storage, ASN.read_bytes())
    fix(storage)

    assert not copy.exists()


def test_a_cache_folder_writable_by_other_users_is_refused(storage: StorageSpec, tmp_path: Path) -> None:
    put(storage, CITY.read_bytes())
    (tmp_path / f"deltaworks-databases-{os.getuid()}").mkdir(mode=0o700)
    (tmp_path / f"deltaworks-databases-{os.getuid()}").chmod(0o777)

    with pytest.raises(ConfigError, match="Other users can access"):
        fix(storage)


def damaged() -> list[Path]:
    return sorted((MAXMIND / "bad-data").rglob("*.mmdb"))


@pytest.mark.parametrize("mode", [maxminddb.MODE_MMAP_EXT, maxminddb.MODE_MMAP], ids=["c", "python"])
def test_a_corrupt_database_raises_and_never_returns_null(
    storage: StorageSpec, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is refused when it is opened, or at a look-up, or answers as the reader alone does: never null."""
    if mode == maxminddb.MODE_MMAP:
        monkeypatch.setattr(maxminddb, "_extension", None)
    module._reader.cache_clear()
    probes = ["0.0.0.0", "1.1.1.1", "81.2.69.142", "255.255.255.255"]
    refused = {"opened": 0, "looked up": 0, "never": 0}
    for path in damaged():
        put(storage, path.read_bytes(), f"{path.stem}.mmdb")
        try:
            reader = fix(storage, f"{path.stem}.mmdb").open_lookup(f"{path.stem}.mmdb")
        except ConfigError:
            refused["opened"] += 1
            continue
        raised = 0
        with maxminddb.open_database(path, mode) as plain:
            for probe in probes:
                try:
                    expected = plain.get(probe)
                except Exception:
                    with pytest.raises(ConfigError, match="ENRICHMENT_UNREADABLE") as refusal:
                        reader.lookup(probe)
                    assert probe not in str(refusal.value)
                    raised += 1
                else:
                    assert reader.lookup(probe) == expected
        refused["looked up" if raised else "never"] += 1

    assert len(damaged()) == sum(refused.values()) == 21
    assert refused["opened"] >= 9
    assert refused["looked up"] >= 6


def test_a_database_error_never_becomes_null() -> None:
    class Broken:
        def metadata(self) -> object:
            return type("Metadata", (), {"ip_version": 6})()

        def get(self, address: str) -> object:
            raise maxminddb.InvalidDatabaseError(address)

    with pytest.raises(ConfigError, match="ENRICHMENT_UNREADABLE") as refusal:
        AddressLookup(Broken(), "x.mmdb").lookup("203.0.113.7")  # type: ignore[arg-type]

    assert "203.0.113.7" not in str(refusal.value)
