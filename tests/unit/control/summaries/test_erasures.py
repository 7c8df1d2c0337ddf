"""The summary of erasures equals the records, after any order of writes and losses."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from deltaworks.control.objects import LocalObjects
from deltaworks.control.paths import erasures_summary
from deltaworks.control.records.erasure import GRANTED_STATES, ErasureRequest, Erasures
from deltaworks.control.summaries import erasures as summaries
from deltaworks.control.summaries.erasures import ErasureRow, ErasuresSummary, publish_request, publish_requests
from deltaworks.errors import TransientError
from deltaworks.testing import present

RECEIVED = dt.datetime(2026, 11, 2, tzinfo=dt.UTC)


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path)


def create_request(objects: LocalObjects, name: str = "e1", *, days: int = 0) -> ErasureRequest:
    at = RECEIVED + dt.timedelta(days=days)
    return Erasures(objects, "players").create(
        name,
        received_at=at,
        purge_by=at + dt.timedelta(days=21),
        deadline_at=at + dt.timedelta(days=30),
        digest="d",
        by="tests",
    )


def rows(objects: LocalObjects) -> dict[str, ErasureRow]:
    stored = present(objects.get(erasures_summary("players")))
    return {row.request_id: row for row in ErasuresSummary.decode(stored.data, key="k").requests}


def test_granted_states_match_the_records() -> None:
    assert summaries.GRANTED_STATES == GRANTED_STATES


def test_a_request_is_listed_from_its_creation_and_at_each_state(objects: LocalObjects) -> None:
    request = create_request(objects)
    assert (rows(objects)["e1"].state, rows(objects)["e1"].step_number) == ("received", 1)

    erasures = Erasures(objects, "players")
    purged = erasures.record_state(request, "purged", by="tests")
    extended = erasures.extend(purged, reason="many", by="tests", now=RECEIVED)

    row = rows(objects)["e1"]
    assert (row.state, row.is_purged, row.is_extended) == ("purged", True, True)
    assert row.deadline_at == extended.deadline_at.isoformat()


def test_the_nearest_deadline_is_first_and_completed_requests_are_last(objects: LocalObjects) -> None:
    for name, days in (("e1", 9), ("e2", 3), ("e3", 1)):
        create_request(objects, name, days=days)
    erasures = Erasures(objects, "players")
    erasures.record_state(erasures.request("e3"), "certified", by="tests")

    assert list(rows(objects)) == ["e2", "e1", "e3"]


def test_an_outdated_row_does_not_replace_a_newer_one(objects: LocalObjects) -> None:
    before = create_request(objects)
    Erasures(objects, "players").record_state(before, "resolved", by="tests")

    publish_request(objects, "players", before.summary_row())
    assert rows(objects)["e1"].state == "resolved"
    publish_requests(objects, "players", [before.summary_row()])
    assert rows(objects)["e1"].state == "resolved"


@pytest.mark.parametrize("torn", [b"", b"{", b'{"format": 99}'])
def test_a_damaged_or_lost_summary_is_rebuilt_from_the_records(objects: LocalObjects, torn: bytes) -> None:
    create_request(objects)
    objects.put(erasures_summary("players"), torn)

    publish_requests(objects, "players", [one.summary_row() for one in Erasures(objects, "players").all_requests()])

    assert list(rows(objects)) == ["e1"]


def test_a_request_without_records_is_removed(objects: LocalObjects) -> None:
    create_request(objects)
    publish_requests(objects, "players", [])

    assert rows(objects) == {}


def test_an_unchanged_summary_is_not_written(objects: LocalObjects) -> None:
    create_request(objects)
    key = erasures_summary("players")
    before = objects.etag(key)
    publish_requests(objects, "players", [one.summary_row() for one in Erasures(objects, "players").all_requests()])

    assert objects.etag(key) == before


class SummaryRejectingObjects(LocalObjects):
    """A store that rejects only the summary."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if key == erasures_summary("players"):
            raise TransientError("STORAGE_UNREACHABLE", "no", hint="")
        return super().put_if_absent(key, data)


def test_a_failed_summary_write_does_not_block_a_request(tmp_path: Path) -> None:
    objects = SummaryRejectingObjects(tmp_path)

    assert create_request(objects).state == "received"
    assert objects.get(erasures_summary("players")) is None


def test_beyond_the_limit_the_oldest_completed_requests_are_omitted(
    objects: LocalObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summaries, "MAX_REQUESTS", 2)
    for name, days in (("e1", 1), ("e2", 2), ("e3", 3)):
        create_request(objects, name, days=days)
    erasures = Erasures(objects, "players")
    for name in ("e1", "e2"):
        erasures.record_state(erasures.request(name), "certified", by="tests")
    publish_requests(objects, "players", [one.summary_row() for one in erasures.all_requests()])

    stored = present(objects.get(erasures_summary("players")))
    summary = ErasuresSummary.decode(stored.data, key="k")
    assert ([row.request_id for row in summary.requests], summary.omitted) == (["e3", "e2"], 1)
