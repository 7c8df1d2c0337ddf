"""Files written by the tasks of a batch: one database for all of them, and no IP address in any byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.engine.fan_out import merge_outputs, partition_columns, write_payloads
from deltaworks.engine.recovery import open_batch_processor
from deltaworks.engine.writers import FileTarget
from deltaworks.errors import ConfigError, TransientError
from deltaworks.events import lookup_databases as module
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.lookup_databases import PinnedDatabases
from deltaworks.events.parse import ParserInputs
from deltaworks.events.source_fields import pin_databases
from deltaworks.sources.task_isolation import TaskOutput
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import StorageSpec
from deltaworks.testing import catalog_of, declare_columns, local_storage, pipeline_spec
from tests.shared_data import SHARED_DATA

MAXMIND = SHARED_DATA / "maxmind"
CITY, ASN = MAXMIND / "GeoLite2-City-Test.mmdb", MAXMIND / "GeoLite2-ASN-Test.mmdb"
DAMAGED = MAXMIND / "bad-data" / "libmaxminddb" / "libmaxminddb-oversized-map.mmdb"
pytestmark = pytest.mark.skipif(
    not CITY.exists(), reason=f"no databases at {MAXMIND}; name their folder in DELTAWORKS_SHARED_DATA"
)
STAMP = BatchMetadata(batch_id=1, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")
IN_LONDON, COOKIE = "81.2.69.142", "session7f3a"
PRIVATE = [{"path": "ip", "keep": "network"}, {"path": "cookie", "keep": "nothing"}]


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StorageSpec]:
    """A lake, and a worker's local disk."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield local_storage(tmp_path / "lake")
    module._reader.cache_clear()


def put(storage: StorageSpec, database: Path) -> None:
    LocalObjects(Path(storage.prefix)).put(paths.database("City.mmdb"), database.read_bytes())


def spec_of(*, private: bool = True) -> PipelineSpec:
    columns = declare_columns("network string from ip", "country string from _geo.country", "level int")
    fields = {"country": "country.iso_code"}
    return pipeline_spec(
        {"name": "requests", "catch_all": True, "evolve": "rescue", "columns": columns},
        pipeline="web",
        source={"kind": "s3_sqs", "relay": "landing", "bucket": "b"},
        event={"name": {"constant": "request"}, "time": {"path": "t", "unit": "epoch_seconds"}},
        enrich=[{"name": "geo", "kind": "mmdb", "path": "ip", "database": "City.mmdb", "fields": fields}],
        private=PRIVATE if private else [],
    )


def task(spec: PipelineSpec, storage: StorageSpec, databases: PinnedDatabases | None, number: int) -> TaskOutput:
    """Runs one task of the batch."""
    folders = {name: paths.table("web", name) for name in partition_columns(spec)}
    target = FileTarget.of(storage, folders, partition_by=partition_columns(spec))
    good = {"t": 1_700_000_000, "ip": IN_LONDON, "cookie": COOKIE, "big": 2**70, "other": "kept"}
    events = [json.dumps(good), json.dumps(good | {"level": "one"}), f'{{"ip": "{IN_LONDON}", broken']
    payloads = [Payload(number, f"k{number}", "\n".join(events).encode())]
    return write_payloads(payloads, spec, STAMP, target, inputs=ParserInputs(databases=databases))


def rows(storage: StorageSpec, table: str) -> list[dict[str, Any]]:
    files = sorted((Path(storage.prefix) / paths.table("web", table)).rglob("*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


@pytest.mark.parametrize("private", [True, False], ids=["private", "nothing_private"])
def test_no_output_of_a_task_contains_an_ip_address(
    storage: StorageSpec, private: bool, caplog: pytest.LogCaptureFixture
) -> None:
    put(storage, CITY)
    spec = spec_of(private=private)

    output = task(spec, storage, pin_databases(spec, storage), 1)

    said = [caplog.text, json.dumps(output.findings.as_record()), str(output.files)]
    for path in (Path(storage.prefix) / "tables").rglob("*.parquet"):
        said += [path.read_bytes().decode("latin-1"), str(pq.ParquetFile(path).read().to_pylist())]
    leaked = {secret for secret in (IN_LONDON, COOKIE) if secret in "\n".join(said)}
    assert leaked == (set() if private else {IN_LONDON, COOKIE})
    assert [row["country"] for row in rows(storage, "requests")] == ["GB"]
    assert len(rows(storage, "quarantine")) == 2


def test_tasks_of_a_batch_share_the_fixed_database_even_if_it_is_replaced(
    storage: StorageSpec,
) -> None:
    put(storage, CITY)
    spec = spec_of()
    fixed = pin_databases(spec, storage)

    task(spec, storage, fixed, 1)
    put(storage, ASN)
    task(spec, storage, fixed, 2)

    assert [row["country"] for row in rows(storage, "requests")] == ["GB", "GB"]


def test_without_a_fixed_database_a_batch_mixes_two_versions(storage: StorageSpec) -> None:
    """Without protection every task opens the current version."""
    put(storage, CITY)
    spec = spec_of()

    task(spec, storage, pin_databases(spec, storage), 1)
    put(storage, ASN)
    task(spec, storage, pin_databases(spec, storage), 2)

    assert {row["country"] for row in rows(storage, "requests")} == {"GB", None}


def test_a_task_without_the_fixed_database_fails_the_batch(storage: StorageSpec) -> None:
    put(storage, CITY)
    spec = spec_of()
    fixed = pin_databases(spec, storage)
    put(storage, ASN)
    for copy in module._cache_folder().iterdir():
        copy.unlink()

    output = task(spec, storage, fixed, 1)

    assert isinstance(output.findings.failure, TransientError)
    assert output.findings.failure.condition == "ENRICHMENT_REPLACED"
    assert not output.files


def test_a_damaged_database_fails_the_batch_by_name_without_an_ip_address(storage: StorageSpec, tmp_path: Path) -> None:
    put(storage, DAMAGED)
    spec = spec_of()
    target = FileTarget.of(storage, {}, partition_by={})

    output = task(spec, storage, pin_databases(spec, storage), 1)

    failure = merge_outputs([output], target, {}).findings.failure
    assert isinstance(failure, ConfigError)
    assert failure.condition == "ENRICHMENT_UNREADABLE"
    assert "City.mmdb" in str(failure)
    assert IN_LONDON not in str(failure)


@pytest.mark.parametrize("stored", [None, b"", b"no database"], ids=["missing", "empty", "corrupt"])
def test_a_stream_whose_database_is_missing_or_corrupt_does_not_start(
    storage: StorageSpec, stored: bytes | None
) -> None:
    spec = spec_of()
    catalog = catalog_of(Path(storage.prefix), spec, lake=storage)
    objects: Any = LocalObjects(Path(storage.prefix))
    spark: Any = object()
    lease: Any = None
    if stored is not None:
        objects.put(paths.database("City.mmdb"), stored)

    with pytest.raises(ConfigError, match=r"ENRICHMENT_UNREADABLE.*City\.mmdb"):
        open_batch_processor(spark, catalog, spec, objects, lease=lease, epoch=1)

    assert not (Path(storage.prefix) / "tables").exists()
