"""Claims of readers expire, and an unreadable claim is never ignored."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ConfigError


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path)


def test_a_claim_is_valid_until_it_expires_and_is_renewed_by_repeating_it(objects: LocalObjects) -> None:
    said = PipelineHome(objects, "shop").readers.pin("orders", reader="training", version=7, hours=2)
    later = utc_now() + dt.timedelta(hours=3)

    assert PipelineHome(objects, "shop").readers.read() == [said]
    assert said.is_active_at(utc_now())
    assert not said.is_active_at(later)

    PipelineHome(objects, "shop").readers.pin("orders", reader="training", version=8, hours=5)
    (renewed,) = PipelineHome(objects, "shop").readers.read()
    assert renewed.version == 8
    assert renewed.is_active_at(later)


def test_claims_are_separate_by_table_and_pipeline_and_withdrawn_by_name(objects: LocalObjects) -> None:
    for table, reader in (("orders", "a"), ("orders", "b"), ("items", "a")):
        PipelineHome(objects, "shop").readers.pin(table, reader=reader, version=1, hours=1)
    PipelineHome(objects, "games").readers.pin("orders", reader="a", version=1, hours=1)

    assert PipelineHome(objects, "shop").readers.unpin("orders", reader="a")
    assert not PipelineHome(objects, "shop").readers.unpin("orders", reader="a")
    assert {(each.table, each.reader) for each in PipelineHome(objects, "shop").readers.read()} == {
        ("orders", "b"),
        ("items", "a"),
    }
    assert len(PipelineHome(objects, "games").readers.read()) == 1


@pytest.mark.parametrize(("reader", "version", "hours"), [("No Name", 1, 1), ("a", -1, 1), ("a", 1, 0), ("a", 1, 721)])
def test_a_claim_with_invalid_values_is_rejected(
    objects: LocalObjects, reader: str, version: int, hours: float
) -> None:
    with pytest.raises(ConfigError, match="READER_INVALID"):
        PipelineHome(objects, "shop").readers.pin("orders", reader=reader, version=version, hours=hours)
    assert PipelineHome(objects, "shop").readers.read() == []


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"reader": "a"}'])
def test_an_unreadable_claim_is_an_error(objects: LocalObjects, data: bytes) -> None:
    objects.put(paths.reader_record("shop", "orders", "a"), data)

    with pytest.raises(ConfigError, match="READER_UNREADABLE"):
        PipelineHome(objects, "shop").readers.read()
