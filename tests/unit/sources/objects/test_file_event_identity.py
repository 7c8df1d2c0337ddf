"""The identity of file events, and a set of millions of identities."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.sources.objects.file_event_log import IdentitySet, file_event_identity, row_identity
from deltaworks.specs.relay import Overwrites

NAMES = st.binary(min_size=16, max_size=16)


def test_a_file_is_identified_by_bucket_key_and_etag() -> None:
    same = file_event_identity("b", "k", "e")
    assert file_event_identity("b", "k", "e", "another version") == same
    assert (
        len(
            {
                same,
                file_event_identity("B", "k", "e"),
                file_event_identity("b", "K", "e"),
                file_event_identity("b", "k", "E"),
            }
        )
        == 4
    )


def test_parts_of_an_identity_are_delimited() -> None:
    assert file_event_identity("ab", "c", "d") != file_event_identity("a", "bc", "d")
    assert file_event_identity("a", "bc", "") != file_event_identity("a", "b", "c")


def test_versions_count_only_with_every_version() -> None:
    first, second = (
        file_event_identity("b", "k", "e", version, overwrites="every_version") for version in ("v1", "v2")
    )
    assert first != second


NOON = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)


@pytest.mark.parametrize("overwrites", ["latest", "every_version"])
def test_without_an_etag_size_time_and_version_tell_contents_apart(overwrites: Overwrites) -> None:
    def identity(version: str | None = None, size: int = 7, at: datetime = NOON) -> bytes:
        return file_event_identity("b", "k", "", version, size=size, event_time=at, overwrites=overwrites)

    same = identity()
    assert identity(at=NOON.astimezone(timezone(timedelta(hours=2)))) == same
    assert identity(at=NOON.replace(microsecond=0)) == same
    assert len({same, identity(size=8), identity(at=NOON + timedelta(seconds=1)), identity("v1"), identity("v2")}) == 5


def test_with_an_etag_size_and_time_do_not_count() -> None:
    same = file_event_identity("b", "k", "e", size=7, event_time=NOON)
    assert file_event_identity("b", "k", "e", size=8, event_time=NOON + timedelta(days=1)) == same
    assert row_identity(("b", "k", "e", None, 9, NOON), overwrites="latest") == same


def test_where_only_the_first_content_counts_the_etag_may_be_unknown() -> None:
    first = file_event_identity("b", "k", "", size=7, event_time=NOON, overwrites="ignore")
    assert file_event_identity("b", "k", "", size=8, event_time=NOON, overwrites="ignore") == first


@given(st.lists(NAMES), st.lists(NAMES), st.lists(NAMES))
def test_the_set_contains_its_items_and_nothing_else(
    loaded: list[bytes], added: list[bytes], asked: list[bytes]
) -> None:
    names = IdentitySet(loaded)
    for name in added:
        names.add(name)
    known = {*loaded, *added}
    assert all(name in names for name in known)
    assert [name in names for name in asked] == [name in known for name in asked]


def test_identities_that_share_half_their_bytes_are_distinguished() -> None:
    names = IdentitySet([b"12345678abcdefgh", b"12345678ijklmnop"])
    assert b"12345678abcdefgh" in names
    assert b"12345678ijklmnop" in names
    assert b"12345678qrstuvwx" not in names
