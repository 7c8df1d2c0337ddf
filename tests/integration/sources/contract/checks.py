"""What the contract asks of what was read and landed. Each is shown to fail in `test_broken_sources.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.integration.sources.contract.wire import Request


def each_once(rows: Sequence[Mapping[str, Any]], numbers: Iterable[int]) -> None:
    """Each event that was sent is there, once, at a place of its own."""
    assert sorted(row["number"] for row in rows) == sorted(numbers)
    assert len({(row["_seq"], row["_position"]) for row in rows}) == len(rows)


def ended_with_what_was_there(rows: Sequence[Mapping[str, Any]], numbers: Iterable[int]) -> None:
    """A run that began when these had been sent, while others came, has landed these and no other."""
    assert sorted(row["number"] for row in rows) == sorted(numbers)


def in_order(rows: Sequence[Mapping[str, Any]]) -> None:
    """In each lane the rows' places are in the order in which they were sent, and so are their batches."""
    lanes: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row["_seq"], row["_position"])):
        lanes.setdefault(row["lane"], []).append(row)
    assert lanes
    for lane, found in lanes.items():
        sent = [row["number"] for row in found]
        assert sent == sorted(sent), f"the order in {lane}"
        assert [row["_batch_id"] for row in found] == sorted(row["_batch_id"] for row in found)


def within_limit(rows: Sequence[Mapping[str, Any]], *, most: int) -> None:
    """No batch has more events than the limit lets in, and one batch was not enough."""
    sizes = Counter(row["_batch_id"] for row in rows)
    assert len(sizes) > 1
    assert max(sizes.values()) <= most, f"events of each batch: {dict(sizes)}"


def read_in_tasks(reading: Sequence[Request], given: Sequence[Mapping[str, Any]], *, driver: int) -> None:
    """Rows were asked for by processes of both executors and by no other, and came to tasks in both.

    Args:
        reading: the requests for rows that the server's side has seen.
        given: what the tasks noted.
        driver: the process id of the driver's Python.
    """
    others = {(request.client.pid, request.client.command[:80]) for request in reading if not request.client.executor}
    assert not others, f"rows were read outside of executors, by {others}"
    assert len({request.client.executor for request in reading}) == 2
    with_rows = [told for told in given if told["payloads"]]
    assert len({told["executor"] for told in with_rows}) == 2
    assert all(told["executor"] and told["pid"] != driver for told in with_rows)


def read_again_alike(first: Mapping[int, Any], again: Mapping[int, Any]) -> list[int]:
    """The batches that both have read, whose payloads are the same ones with the same content."""
    both = sorted(first.keys() & again.keys())
    for batch in both:
        assert first[batch], f"batch {batch} held nothing: this shows nothing"
        assert again[batch] == first[batch], f"batch {batch} was read as two different ones"
    return both
