"""Events are enriched and masked in the same pass: no IP address is written, and a batch uses one database version."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext, cloudpickle

from deltaworks.control import paths
from deltaworks.errors import ConfigError, TransientError
from deltaworks.events import lookup_databases as module
from deltaworks.events import parse
from deltaworks.events.lookup_databases import AddressLookup, PinnedDatabases
from deltaworks.sources.base import ObjectSlice
from deltaworks.sources.objects.payloads import FileReference
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import StorageSpec
from deltaworks.testing import declare_table, present, write_files
from tests.crashes import Crash, crash_at
from tests.shared_data import SHARED_DATA
from tests.spark.engine.conftest import Shop

MAXMIND = SHARED_DATA / "maxmind"
LOG = SHARED_DATA / "cloudfront_logs" / "sample-cloudfront-access-logs.gz"
CITY, ASN = MAXMIND / "GeoLite2-City-Test.mmdb", MAXMIND / "GeoLite2-ASN-Test.mmdb"
#: Opened without a word, and refused by a look-up of addresses like these.
DAMAGED = MAXMIND / "bad-data" / "libmaxminddb" / "libmaxminddb-oversized-map.mmdb"
pytestmark = [
    pytest.mark.skipif(not LOG.exists(), reason=f"no logs at {LOG}; name their folder in DELTAWORKS_SHARED_DATA"),
]
IN_LONDON, PROXY, COOKIE = "81.2.69.142", "2001:db8:77:5::9", "session=secret7f3a"
REAL = {"3.120.138.129", "52.209.5.129", "13.233.35.131"}
GEO = {
    "name": "geo",
    "kind": "mmdb",
    "path": "c-ip",
    "database": "City.mmdb",
    "fields": {"country": "country.iso_code"},
}
DECLARED: dict[str, Any] = {
    "source": {
        "kind": "s3_sqs",
        "relay": "landing",
        "bucket": "landing",
        "format": "tsv",
        "tsv": {"null_values": ["-", ""]},
    },
    "event": {"name": {"constant": "request"}, "time": {"path": "datetime"}, "id": "x-edge-request-id"},
    "enrich": [GEO, {"name": "agent", "kind": "user_agent", "path": "cs(User-Agent)"}],
    "private": [
        {"path": "c-ip", "keep": "network"},
        {"path": "x-forwarded-for", "keep": "network"},
        {"path": "cs(Cookie)", "keep": "nothing"},
    ],
    "tables": [
        declare_table(
            "requests",
            "network string from c-ip",
            "country string from _geo.country",
            "browser string from _agent.browser",
            "is_bot boolean from _agent.is_bot",
            "status int from sc-status",
            evolve="rescue",
            rules=[{"name": "no_test", "check": "status <> 418", "on_fail": "quarantine"}],
        )
    ],
}


def lines_of_log() -> list[str]:
    return gzip.decompress(LOG.read_bytes()).decode().splitlines()


def line(address: str, *, status: str = "200", number: int = 0) -> str:
    """A log line with a client, a proxy and a cookie."""
    names = lines_of_log()[1].removeprefix("#Fields: ").split()
    values = dict(zip(names, lines_of_log()[2].split("\t"), strict=True))
    values |= {"c-ip": address, "sc-status": status, "cs(Cookie)": COOKIE, "x-edge-request-id": f"r{number}"}
    return "\t".join((values | {"x-forwarded-for": f"{PROXY}, 10.0.0.1"}).values())


def bad_lines() -> list[str]:
    """Invalid lines: too many fields, an invalid status, a failing rule, an invalid date."""
    return [
        line(IN_LONDON, number=1) + "\tmore",
        line(IN_LONDON, number=2, status=f"of {IN_LONDON[:2]}"),
        line(IN_LONDON, number=3, status="418"),
        line(IN_LONDON, number=4).replace("2018-11-07", "yesterday"),
    ]


def put_database(shop: Shop, path: Path) -> str:
    """Uploads a database to the lake; returns its ETag."""
    shop.objects.put(paths.database("City.mmdb"), path.read_bytes())
    return present(shop.objects.etag(paths.database("City.mmdb")))


def land(shop: Shop, **bodies: list[str]) -> ObjectSlice:
    """Writes lines as objects `f<seq>` with a header each; returns the batch's file events."""
    header = lines_of_log()[:2]
    references = []
    for name, body in bodies.items():
        write_files(shop.root, {f"landing/{name}": "\n".join([*header, *body]) + "\n"})
        references.append(FileReference(int(name[1:]), name, ""))
    return ObjectSlice(references, [1] * len(references), {"files": len(references)}, shop.opener())


@pytest.fixture
def cdn(make_shop: Callable[..., Shop]) -> Shop:
    return make_shop(**DECLARED)


def everything_in(folder: Path) -> str:
    """Returns all file contents and names of a folder; tables are decoded, including statistics."""
    texts = []
    for path in sorted(folder.rglob("*")):
        texts.append(str(path.relative_to(folder)))
        if path.is_dir() or path.suffix == ".mmdb":
            continue
        data = path.read_bytes()
        texts.append(data.decode("utf-8", "replace"))
        if data[:4] == b"PAR1":
            file = pq.ParquetFile(path)
            texts += [str(file.read().to_pylist()), str(file.metadata.to_dict())]
    return "\n".join(texts)


SECRETS = {IN_LONDON, PROXY, "10.0.0.1", "secret7f3a"} | REAL


@pytest.mark.parametrize("private", [True, False], ids=["private", "nothing_private"])
def test_no_address_of_real_lines_is_in_any_table_object_or_log(
    cdn: Shop, private: bool, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    if not private:
        cdn.spec = PipelineSpec.model_validate(cdn.spec.model_dump() | {"private": ()})
    put_database(cdn, CITY)
    cdn.processor().process(land(cdn, f1=lines_of_log()[2:], f2=[line(IN_LONDON), *bad_lines()]), 0)

    written = everything_in(cdn.root / "lake")
    said = caplog.text + "".join(capfd.readouterr())

    present = {secret for secret in SECRETS if secret in written or secret in said}
    assert present == (set() if private else SECRETS)
    rows = cdn.table("requests").to_pylist()
    assert len(rows) == 67
    assert sum(row["is_bot"] for row in rows) == 42
    assert {row["country"] for row in rows if row["event_id"] == "r0"} == {"GB"}
    quarantined = cdn.table("quarantine").to_pylist()
    assert sorted(row["reasons"][0]["code"] for row in quarantined) == [
        "malformed",
        "rule",
        "type_mismatch",
        "type_mismatch",
    ]
    assert {(row["raw"] == "", row["raw_complete"]) for row in quarantined} == {(private, not private)}
    if private:
        assert {row["network"] for row in rows} == {"3.120.138.0", "52.209.5.0", "13.233.35.0", "81.2.69.0"}


class Replaced(PinnedDatabases):
    """Databases that are replaced in the lake between the first and the second task of a pass.

    `gone`: the second task runs on a worker without a copy.
    """

    gone = False

    def open_lookup(self, name: str) -> AddressLookup:
        """Opens the database; the second task only after the first has opened its own and the lake's was replaced."""
        context = TaskContext.get()
        opened = Path(StorageSpec.model_validate_json(self.storage).prefix) / "opened"
        if context is None or context.partitionId() == 0:
            lookup = self.open_in_task(name)
            opened.touch()
            return lookup
        for _ in range(600):
            if opened.exists():
                break
            time.sleep(0.1)
        module._objects(self.storage, os.getpid()).put(paths.database(name), ASN.read_bytes())
        before = tempfile.tempdir
        try:
            tempfile.tempdir = tempfile.mkdtemp() if self.gone else before
            return self.open_in_task(name)
        finally:
            tempfile.tempdir = before

    def open_in_task(self, name: str) -> AddressLookup:
        """Opens the version that was fixed when the pass began."""
        return super().open_lookup(name)


class ReplacedAndGone(Replaced):
    gone = True


class NotFixed(Replaced):
    """Without protection: a task opens the lake's version at its start."""

    def open_in_task(self, name: str) -> AddressLookup:
        """Opens the version that the lake holds now."""
        return PinnedDatabases.pin([name], StorageSpec.model_validate_json(self.storage)).open_lookup(name)


def replace_in_the_pass(monkeypatch: pytest.MonkeyPatch, kind: type[Replaced]) -> None:
    """Replaces the database while the next batch is read, after its version was fixed."""
    cloudpickle.register_pickle_by_value(__import__(__name__, fromlist=["_"]))
    pin_databases = parse.pin_databases

    def fixed(spec: PipelineSpec, storage: StorageSpec) -> PinnedDatabases | None:
        databases = present(pin_databases(spec, storage))
        return kind(**{one.name: getattr(databases, one.name) for one in fields(PinnedDatabases)})

    monkeypatch.setattr(parse, "pin_databases", fixed)


def two_objects(shop: Shop) -> ObjectSlice:
    return land(shop, f1=[line(IN_LONDON, number=1)], f2=[line(IN_LONDON, number=2)])


def countries(shop: Shop) -> list[str | None]:
    return sorted((row["country"] for row in shop.table("requests").to_pylist()), key=str)


def named(shop: Shop) -> list[list[str]]:
    """The ETags in the ledger, by batch."""
    rows = shop.ledger("checkpoint_store")
    return [[one["etag"] for one in json.loads(row["source_metadata"])["databases"]] for row in rows]


def test_a_database_replaced_during_a_batch_is_not_used_for_its_events(
    cdn: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = put_database(cdn, CITY)
    processor = cdn.processor()
    with monkeypatch.context() as patched:
        replace_in_the_pass(patched, Replaced)
        processor.process(two_objects(cdn), 0)

    assert countries(cdn) == ["GB", "GB"]
    assert named(cdn) == [[first]]


def test_tasks_that_open_the_current_database_mix_two_versions(cdn: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    put_database(cdn, CITY)
    processor = cdn.processor()
    with monkeypatch.context() as patched:
        replace_in_the_pass(patched, NotFixed)
        processor.process(two_objects(cdn), 0)

    assert set(countries(cdn)) == {"GB", None}


def test_a_worker_without_the_fixed_version_causes_a_re_read_of_the_batch(
    cdn: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_database(cdn, CITY)
    processor = cdn.processor()
    with monkeypatch.context() as patched:
        replace_in_the_pass(patched, ReplacedAndGone)
        with pytest.raises(TransientError, match="ENRICHMENT_REPLACED"):
            processor.process(two_objects(cdn), 0)
    assert cdn.table("requests").num_rows == 0

    cdn.processor().process(two_objects(cdn), 0)

    assert countries(cdn) == [None, None]
    assert named(cdn) == [[cdn.objects.etag(paths.database("City.mmdb"))]]


def test_a_prepared_batch_is_completed_with_its_database(cdn: Shop) -> None:
    first = put_database(cdn, CITY)

    with pytest.raises(Crash):
        cdn.processor(fault=crash_at("prepared")).process(two_objects(cdn), 0)
    second = put_database(cdn, ASN)
    processor = cdn.processor()
    processor.complete_prepared()
    processor.process(land(cdn, f3=[line(IN_LONDON, number=3)]), 1)

    assert countries(cdn) == ["GB", "GB", None]
    assert named(cdn) == [[first], [second]]


def test_a_damaged_database_fails_the_batch_until_it_is_repaired(cdn: Shop) -> None:
    put_database(cdn, DAMAGED)
    processor = cdn.processor()
    with pytest.raises(ConfigError, match="ENRICHMENT_UNREADABLE") as refused:
        processor.process(two_objects(cdn), 0)
    assert IN_LONDON not in str(refused.value)
    assert cdn.table("requests").num_rows == 0

    put_database(cdn, CITY)
    cdn.processor().process(two_objects(cdn), 0)

    assert countries(cdn) == ["GB", "GB"]
