"""Personal data in processes that are killed: leaks, tokens of one person, and the treatment of children and opt-outs.

A collector, parsers and the vault's job are processes. Each fault also runs with its protection disabled, which must do
harm.
"""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer
from deltalake import DeltaTable, write_deltalake

from deltaworks.control import paths
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser, ParserInputs
from deltaworks.privacy.paths import vault_identities
from deltaworks.specs.project import load_catalog
from deltaworks.testing import declare_pipeline, declare_table, present, write_files
from sandbox.servers.kafka_broker import create_topics, running_broker
from tests.faults.harness.collector_harness import BUCKET, KEY, CollectorHarness, collector_harness
from tests.faults.harness.collector_lake import EVENT
from tests.faults.harness.personal_protections import disable
from tests.waiting import eventually

CANARY = "canary7f3a@example.org"
NEEDLE = b"canary7f3a"
DAY_MS = 86_400_000
AT_MS = 1_795_132_800_000
STAMP = {"_collector": {"time": "2026-03-01T10:00:00Z"}}
DECLARED_PRIVACY = {
    "namespace": "players",
    "subject": ["player"],
    "fields": [
        {"path": "player", "action": "token", "as": "player"},
        {"path": "email", "action": "vault", "as": "email"},
        {"path": "friends[].name", "action": "token", "as": "player"},
        {"path": "nick", "action": "drop"},
        {"path": "ip", "action": "truncate_ip"},
    ],
    "scan": {"email": "drop"},
    "regulation": {"child": {"when": {"age": "under_13"}}, "opt_out": {"when": {"consent": False}}},
}
ORDERS = declare_table("orders", "player string", "email string", "amount int")
PIPELINE = declare_pipeline(ORDERS, event=EVENT, privacy=DECLARED_PRIVACY)
PRIVACY = """
privacy:
  keys: {kind: keyring, folder: "ROOT/keys"}
  vault: {root: "file://ROOT/vault"}
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[CollectorHarness]:
    """A collector, not started yet, of a pipeline with personal data, a keyring and a vault."""
    with collector_harness(tmp_path, close_bytes="4KiB") as stage:
        write_files(tmp_path / "include/pipelines/shop", {"pipeline.yaml": PIPELINE})
        environment = tmp_path / "include" / "environments" / "local.yaml"
        environment.write_text(environment.read_text() + PRIVACY.replace("ROOT", str(tmp_path)))
        yield stage


def send(stage: CollectorHarness, *events: Any) -> None:
    lines = b"\n".join(event if isinstance(event, bytes) else json.dumps(event).encode() for event in events)
    answer = httpx2.post(
        f"{stage.url}/v1/events",
        params={"who": CANARY},
        content=lines,
        headers={
            "content-type": "application/x-ndjson",
            "referer": f"https://example.org/{CANARY}",
            "user-agent": CANARY,
            "x-forwarded-for": CANARY,
            "cookie": f"who={CANARY}",
        },
        auth=(KEY, ""),
        timeout=30,
    )
    assert answer.status_code == 200, answer.text


def landed(stage: CollectorHarness) -> dict[str, bytes]:
    """Returns the objects of the bucket, decompressed."""
    pages = stage.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
    return {key: gzip.decompress(stage.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()) for key in keys}


def deliver(stage: CollectorHarness, *, off: str = "") -> dict[str, bytes]:
    """Kills the collector, restarts it on its spool, and waits until everything has landed."""
    assert stage.end(signal.SIGKILL) == -signal.SIGKILL
    stage.start(off=off)
    eventually(lambda: stage.heartbeat().get("oldest_at") is None and len(landed(stage)) > 0, "it is delivered")
    return landed(stage)


def stream(stage: CollectorHarness, objects: dict[str, bytes]) -> None:
    """Lands the objects in the lake and records their batch, as a stream does."""
    catalog = load_catalog("local", root=stage.root)
    spec, lake = catalog.pipeline("shop"), stage.root / "lake"
    parser = Parser(spec, redaction_keys=ParserInputs.pin(spec, catalog.environment.lake).redaction_keys)
    payloads = [Payload(seq, key, data) for seq, (key, data) in enumerate(sorted(objects.items()), 1)]
    for table, part in parser.parse(payloads, BatchMetadata(1, AT_MS * 1000, "f")):
        write_deltalake(str(lake / paths.table("shop", table)), part, mode="append")
    record = parser.findings.as_record() | {"facts": parser.findings.ledger_entry()}
    prepared = lake / paths.prepared_batch("shop", 1, 1)
    prepared.parent.mkdir(parents=True, exist_ok=True)
    prepared.write_text(json.dumps(record))


def read_in_process(stage: CollectorHarness, way: str, data: bytes, *, at_ms: int = AT_MS, off: str = "") -> list[Any]:
    """Returns the rows of an object, parsed in a separate process."""
    file = stage.root / "object.json"
    file.write_bytes(data)
    program = [
        sys.executable,
        "-m",
        "tests.faults.harness.redaction_entry",
        str(stage.root),
        way,
        str(file),
        str(at_ms),
    ]
    variables = stage.environment()
    done = subprocess.run(
        [*program, off], cwd=Path(__file__).parents[2], env=variables, capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()[-2_000:]
    answer: list[Any] = json.loads(done.stdout)
    return answer


def has_canary(data: bytes) -> bool:
    """Whether bytes contain the canary, directly or in gzip members such as the frames of a spool."""
    if NEEDLE in data:
        return True
    at = data.find(b"\x1f\x8b\x08")
    while at >= 0:
        try:
            if NEEDLE in zlib.decompressobj(31).decompress(data[at:]):
                return True
        except zlib.error:
            pass
        at = data.find(b"\x1f\x8b\x08", at + 1)
    return False


def places_of(folder: Path) -> set[str]:
    """Returns the files below a folder that contain the canary, decoded."""
    places = set()
    for path in (path for path in folder.rglob("*") if path.is_file()):
        data = repr(pq.read_table(path).to_pylist()).encode() if path.suffix == ".parquet" else path.read_bytes()
        if has_canary(data) or NEEDLE.decode() in str(path):
            places.add(str(path.relative_to(folder)).split("/")[0])
    return places


def everywhere(stage: CollectorHarness) -> set[str]:
    """Returns each place that has the canary: spool, log, metrics, landed objects, lake, vault, or the memory of a core
    dump.
    """
    found = {name for name in ("spool", "lake", "vault") if places_of(stage.root / name)}
    if has_canary(stage.log.read_bytes()):
        found.add("log")
    if NEEDLE in httpx2.get(stage.metrics_url, timeout=30).content:
        found.add("metrics")
    if any(NEEDLE in data or NEEDLE.decode() in key for key, data in landed(stage).items()):
        found.add("objects")
    assert stage.process is not None
    if psutil.Process(stage.process.pid).rlimit(psutil.RLIMIT_CORE) != (0, 0):
        found.add("core")
    return found


def canaries() -> list[Any]:
    """Returns events with the canary in every declared field, and payloads that are not events."""
    event = {"name": "order", "event_id": "1", "player": "ann", "email": "ann@example.org", "amount": 1}
    fields: list[dict[str, Any]] = [
        {"player": CANARY},
        {"email": CANARY},
        {"friends": [{"name": CANARY}, CANARY]},
        {"nick": CANARY},
        {"ip": CANARY},
        {"note": f"write to {CANARY}"},
        {"player": CANARY, "amount": "many"},  # to quarantine
        {"player": {"id": CANARY}, "email": [CANARY]},
    ]
    broken = [json.dumps(event | {"email": CANARY}).encode()[:-3], f'["{CANARY}"]'.encode(), b'"%s"' % CANARY.encode()]
    return [*(event | {"event_id": str(number)} | some for number, some in enumerate(fields)), *broken]


@pytest.mark.parametrize("off", ["", "redact", "seal_unreadable"])
def test_a_canary_in_every_field_header_and_address_is_nowhere_behind_the_door(
    stage: CollectorHarness, monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    stage.start(off=off)
    send(stage, *canaries())
    assert stage.end(signal.SIGKILL) == -signal.SIGKILL
    on_disk = places_of(stage.spool)
    assert list(stage.spool.rglob("*.wal")), "what was acknowledged is on the disk"
    stage.start(off=off)

    objects = deliver(stage, off=off)
    disable(off, monkeypatch.setattr)
    stream(stage, objects)

    found = everywhere(stage)
    quarantined = pq.read_table(stage.root / "lake" / paths.table("shop", "quarantine"), columns=["raw"])
    if off:
        assert on_disk, "without it the spool has it"
        assert {"objects", "lake"} <= found
    else:
        assert (on_disk, found) == (set(), set())
        assert quarantined.num_rows >= 4
        eventually(lambda: bool(list((stage.root / "vault").rglob("*.dws"))), "what it was is sealed in the vault")
        assert places_of(stage.root / "vault") == set()


@pytest.mark.parametrize("off", ["", "namespace_key"])
def test_an_event_has_one_token_by_whatever_way_it_comes(stage: CollectorHarness, off: str) -> None:
    event = {"name": "order", "event_id": "1", "player": "ann", "email": "Ann@Example.org ", "amount": 1}
    body = json.dumps(event | STAMP).encode()
    stage.start(off=off)
    send(stage, event)
    (collected,) = deliver(stage, off=off).values()
    ways = {"collector": read_in_process(stage, "stream", collected, off=off)}
    with running_broker(stage.root / "kafka", settings={"auto.create.topics.enable": "false"}) as broker:
        create_topics(broker.address.bootstrap, ["orders"])
        producer = Producer({"bootstrap.servers": broker.address.bootstrap})
        producer.produce("orders", body)
        assert producer.flush(30) == 0
        options = {"bootstrap.servers": broker.address.bootstrap, "group.id": "one", "auto.offset.reset": "earliest"}
        consumer = Consumer(options)
        consumer.subscribe(["orders"])
        record = present(consumer.poll(60))
        assert record.error() is None
        value = record.value()
        assert isinstance(value, bytes)
        consumer.close()
    ways["kafka"] = read_in_process(stage, "record", value, off=off)
    stage.client.put_object(Bucket=BUCKET, Key="of-others.json", Body=body)
    file = stage.client.get_object(Bucket=BUCKET, Key="of-others.json")["Body"].read()
    ways["file"] = read_in_process(stage, "stream", file, off=off)
    ways["reprocess"] = read_in_process(stage, "reprocess", file, off=off)

    people = {way: (row["player"], row["email"]) for way, (row,) in ways.items()}

    assert all(token.startswith("p1_") for tokens in people.values() for token in tokens)
    assert len(set(people.values())) == (len(ways) if off else 1), people


@pytest.mark.parametrize("off", ["", "regulation"])
def test_of_children_and_who_refuses_the_vault_has_nothing_and_nobody_is_followed(
    stage: CollectorHarness, off: str
) -> None:
    child = {"name": "order", "event_id": "1", "player": "kid", "email": "kid@example.org", "age": "under_13"}
    refused = {"name": "order", "event_id": "2", "player": "eve", "email": "eve@example.org", "consent": False}
    adult = {"name": "order", "event_id": "3", "player": "ann", "email": "ann@example.org"}
    stage.start(off=off)
    send(stage, child, refused, adult)
    objects = deliver(stage, off=off)
    eventually(lambda: bool(list((stage.root / "vault" / "sealed").rglob("*.dws"))), "what is sealed is in the vault")
    # The job dies after it created the keys; the next run continues.
    for arguments, code in ((["--kill", "keys are made"], -signal.SIGKILL), ([], 0)):
        program = [sys.executable, "-m", "tests.faults.harness.vault_entry", str(stage.root), *arguments]
        assert subprocess.run(program, cwd=Path(__file__).parents[2], check=False, timeout=120).returncode == code

    known = DeltaTable(str(stage.root / "vault" / vault_identities())).count()
    tokens = [
        {
            row["player"]
            for row in read_in_process(stage, "stream", json.dumps(one | STAMP).encode(), at_ms=at_ms, off=off)
        }
        for one in (child, refused, adult)
        for at_ms in (AT_MS, AT_MS + DAY_MS)
    ]
    of_child, of_refused, of_adult = (tokens[number : number + 2] for number in (0, 2, 4))
    kept = {json.loads(line)["event_id"] for data in objects.values() for line in data.splitlines()}

    assert of_adult[0] == of_adult[1] != {None}
    if off:
        assert (known, kept) == (3, {"1", "2", "3"})
        assert of_child[0] == of_child[1]
    else:
        assert (known, kept) == (1, {"1", "3"})
        assert of_child[0] != of_child[1]
        assert of_refused == [set(), set()]
