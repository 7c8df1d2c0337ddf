"""The suppression list: merging records, and the start and end of entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ContractError
from deltaworks.privacy import paths
from deltaworks.privacy.tokens.envelope_encryption import suppression_digest, token
from deltaworks.privacy.tokens.suppression import NO_SUPPRESSION, SuppressionRecord, merge_records, read_suppression

KEY = bytes(32)
ADA = token(KEY, kind="player", value="ada")
BOB = token(KEY, kind="player", value="bob")
MAY_US = 1_777_593_600_000_000  # 2026-05-01


def record(number: int, *tokens: str, until: str | None = None, after: str = "drop") -> SuppressionRecord:
    digests = tuple(suppression_digest(KEY, item) for item in tokens)
    return SuppressionRecord(
        namespace="players",
        number=number,
        request_id=f"r{number}",
        created_at="2026-04-01T00:00:00+00:00",
        digests=digests,
        until=until,
        after=after,
    )


@pytest.fixture
def lake(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path)


def put(lake: LocalObjects, *records: SuppressionRecord) -> None:
    for item in records:
        assert lake.put_if_absent(paths.suppression_record_key("players", item.number), item.encode())


def test_a_namespace_without_records_suppresses_no_subject(lake: LocalObjects) -> None:
    assert read_suppression(lake, "players") == NO_SUPPRESSION
    assert not NO_SUPPRESSION.matches(KEY, [ADA], at_us=0)


def test_the_list_has_every_record_and_the_highest_number(lake: LocalObjects) -> None:
    put(lake, record(1, ADA), record(2, BOB))

    suppression = read_suppression(lake, "players")

    assert suppression.number == 2
    assert suppression.matches(KEY, [ADA], at_us=MAY_US)
    assert suppression.matches(KEY, ["p1_none", BOB], at_us=MAY_US)
    assert not suppression.matches(KEY, [token(KEY, kind="player", value="eve")], at_us=MAY_US)
    assert not suppression.matches(bytes(31) + b"1", [ADA], at_us=MAY_US)


def test_an_unchanged_list_is_not_read_again(lake: LocalObjects) -> None:
    put(lake, record(1, ADA))
    first = read_suppression(lake, "players")

    assert read_suppression(lake, "players", since=first) is first
    put(lake, record(2, BOB))
    assert read_suppression(lake, "players", since=first).number == 2


@pytest.mark.parametrize(("after", "suppressed"), [("drop", True), ("accept", False)])
def test_later_events_are_accepted_only_with_a_new_consent(after: str, suppressed: bool) -> None:
    suppression = merge_records([record(1, ADA, until="2026-04-30T12:00:00+00:00", after=after)])

    assert suppression.matches(KEY, [ADA], at_us=MAY_US - 86_400_000_000)
    assert suppression.matches(KEY, [ADA], at_us=MAY_US) is suppressed


def test_the_later_end_of_two_entries_wins() -> None:
    short = record(1, ADA, until="2026-04-01T00:00:00+00:00", after="accept")

    assert merge_records([short, record(2, ADA)]).matches(KEY, [ADA], at_us=MAY_US)
    assert merge_records([record(1, ADA), short]).matches(KEY, [ADA], at_us=MAY_US)
    assert not merge_records([short]).matches(KEY, [ADA], at_us=MAY_US)


def test_a_record_round_trips() -> None:
    written = record(3, ADA, until="2026-04-30T12:00:00+00:00", after="accept")

    assert SuppressionRecord.decode(written.encode(), key="k") == written
    assert ADA.encode() not in written.encode()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format":2}', b'{"format":1,"digests":[]}'])
def test_an_incomplete_list_is_refused(lake: LocalObjects, data: bytes) -> None:
    put(lake, record(1, ADA))
    lake.put(paths.suppression_record_key("players", 2), data)

    with pytest.raises(ContractError) as refused:
        read_suppression(lake, "players")

    assert refused.value.condition == "SUPPRESSION_UNREADABLE"


def test_a_record_under_another_number_is_refused(lake: LocalObjects) -> None:
    lake.put(paths.suppression_record_key("players", 2), record(1, ADA).encode())

    with pytest.raises(ContractError):
        read_suppression(lake, "players")
