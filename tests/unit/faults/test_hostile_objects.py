"""The hostile objects of the soak test: the product reads exactly the events that a slow reader counts."""

from __future__ import annotations

import gzip
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from deltaworks.events.chunks import BatchMetadata
from deltaworks.events.parse import Parser
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import local_storage, pipeline_spec
from tests.faults.harness.hostile_objects import KINDS, HostileObject, deadly, event
from tests.faults.harness.hostile_run import SOURCE
from tests.faults.harness.hostile_verdict import ObjectOutcome
from tests.faults.harness.slow_count import events_in

STAMP = BatchMetadata(batch_id=0, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")
#: As many numbers as there are kinds of objects that differ by theirs.
NUMBERS = range(7)


def spec() -> PipelineSpec:
    columns = [{"name": "n", "path": "n", "type": "long", "required": True}]
    source: dict[str, Any] = {"kind": "s3_sqs", "relay": "landing", "bucket": "b", **SOURCE}
    return pipeline_spec(
        {"name": "events", "catch_all": True, "columns": columns},
        {"name": "k01", "when": {"name": "k01"}, "columns": columns},
        pipeline="faults",
        source=source,
        event={"name": {"path": "name"}, "time": {"path": "at", "unit": "epoch_seconds"}, "id": "id"},
    )


def fates(folder: Path, declared: PipelineSpec, *sent: HostileObject) -> list[ObjectOutcome]:
    """What becomes of objects that one task reads, in their order."""
    opener = FileOpener(local_storage(folder), compression="auto", max_object_bytes=declared.source.max_object_bytes)
    payloads = []
    for seq, each in enumerate(sent):
        key = f"{seq}{each.suffix.replace('/', '')}"
        if not each.is_deleted:
            (folder / key).write_bytes(each.body)
        payloads.append(opener(FileReference(seq, key, "")))
    landed, quarantined = defaultdict(list), defaultdict(list)
    reasons: dict[int, Counter[str]] = defaultdict(Counter)
    for table, rows in Parser(declared).parse(payloads, STAMP):
        for row in rows.to_pylist():
            if table == "quarantine":
                quarantined[row["_seq"]].append(row["_position"])
                reasons[row["_seq"]][row["reasons"][0]["code"]] += 1
            elif table == "events":
                landed[row["_seq"]].append(row["_position"])
    return [ObjectOutcome(tuple(landed[seq]), tuple(quarantined[seq]), reasons[seq]) for seq in range(len(sent))]


@pytest.mark.parametrize("kind", KINDS)
def test_every_event_of_a_hostile_object_is_accounted_for(kind: str, tmp_path: Path) -> None:
    sent = [KINDS[kind](number) for number in NUMBERS if number == 0 or KINDS[kind](number) != KINDS[kind](0)]

    for each, fate in zip(sent, fates(tmp_path, spec(), *sent), strict=True):
        assert fate.wrong(each) == ""
        assert each.kind == kind


def test_what_vanished_came_twice_or_is_too_little_is_wrong() -> None:
    sent = HostileObject("three", b"\n".join(event(1, place) for place in range(3)))

    def wrong(landed: tuple[int, ...], quarantined: tuple[int, ...], *codes: str) -> bool:
        return bool(ObjectOutcome(landed, quarantined, Counter(codes)).wrong(sent))

    assert not wrong((0, 2), (1,), "type_mismatch")
    assert not wrong((), (-1,), "object_unreadable")
    assert not wrong((0,), (1,), "over_budget")
    assert wrong((), ())
    assert wrong((0, 1, 2, 2), ())
    assert wrong((0, 1, 2), (2,), "type_mismatch")
    assert wrong((0,), (-1,), "object_unreadable")
    assert wrong((0,), (1,), "type_mismatch")
    assert wrong((0, 1, 2), (3, 4), "malformed")


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b"", 0),
        (b"[]", 0),
        (b"[[], {}, 1]{}", 4),
        (b'{"a":"}{[\\""} 1 2 null', 4),
        (gzip.compress(b"{}" * 9), 9),
        (gzip.compress(b"{}")[:-3], None),
        (b'{"a":', None),
        (b'{"a', None),
        (b"}", None),
        (b"<html>", None),
        (deadly(0).body, None),
    ],
)
def test_the_slow_reader_counts_events_or_says_that_nobody_can(body: bytes, count: int | None) -> None:
    assert events_in(body, at_most=100) == count
    if count:
        assert events_in(body, at_most=1) == 1
