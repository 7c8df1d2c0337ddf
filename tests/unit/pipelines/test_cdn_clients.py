"""Requests of the pipeline `cdn_logs` out of real lines of CloudFront, whose answers were counted by other means."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.events.source_fields import pin_databases
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.loading import load_spec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import local_storage

CDN_LOGS = PROJECT_ROOT / "include" / "pipelines" / "cdn_logs" / "pipeline.yaml"
STAMP = BatchMetadata(batch_id=0, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")


def requests(logs: Path, lake: Path, *lines: str) -> list[dict[str, Any]]:
    """The rows of the real lines and of others below them."""
    for name in ("City", "ASN"):
        data = (logs.parent / "maxmind" / f"GeoLite2-{name}-Test.mmdb").read_bytes()
        LocalObjects(lake).put(paths.database(f"geo/GeoLite2-{name}.mmdb"), data)
    spec = load_spec(PipelineSpec, CDN_LOGS)
    databases = pin_databases(spec, local_storage(lake))
    data = gzip.decompress((logs / "sample-cloudfront-access-logs.gz").read_bytes()) + "\n".join(lines).encode()
    parts = list(Parser(spec, databases=databases).parse([Payload(1, "k", data)], STAMP))
    assert {name for name, _ in parts} == {"requests"}
    return [row for _, part in parts for row in part.to_pylist()]


@pytest.fixture
def rows(cloudfront_logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return requests(cloudfront_logs, tmp_path / "lake")


def test_the_rows_are_those_that_were_counted(rows: list[dict[str, Any]]) -> None:
    assert (len(rows), len({row["event_id"] for row in rows})) == (66, 66)
    assert len({row["network"] for row in rows}) == 3
    assert len({row["edge"][:3] for row in rows}) == 3
    assert sum(row["bytes"] for row in rows) == 81_303
    assert Counter(row["status"] for row in rows) == {"302": 63, "200": 3}
    assert Counter(row["result"] for row in rows) == {"Hit": 23, "Miss": 2, "LambdaGeneratedResponse": 41}
    assert Counter(row["event_time"].strftime("%H:%M") for row in rows) == {"00:11": 1, "00:12": 21, "00:13": 44}
    assert sum(row["is_bot"] for row in rows) == 41


def test_clients_have_their_country_and_provider(
    cloudfront_logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (line,) = [
        line
        for line in gzip.decompress((cloudfront_logs / "sample-cloudfront-access-logs.gz").read_bytes())
        .decode()
        .splitlines()
        if "3.120.138.129" in line
    ][:1]

    row = requests(cloudfront_logs, tmp_path / "lake", line.replace("3.120.138.129", "1.128.0.7"))[-1]
    other = requests(cloudfront_logs, tmp_path / "lake", line.replace("3.120.138.129", "81.2.69.142"))[-1]

    assert (row["network"], row["asn"], row["isp"]) == ("1.128.0.0", 1221, "Telstra Pty Ltd")
    assert (other["network"], other["country"], other["region"]) == ("81.2.69.0", "GB", "ENG")
