"""The checks of the source contract. Each returns a description of the violation, empty if there is none.

`test_broken_sources.py` shows that each check can fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.integration.sources.contract.wire import Request

Rows = Sequence[Mapping[str, Any]]


def each_event_once(rows: Rows, numbers: Iterable[int]) -> list[str]:
    """Checks that each sent event has landed once, at a unique position."""
    wrong = exactly_these(rows, numbers)
    places = Counter((row["_seq"], row["_position"]) for row in rows)
    return wrong + [f"{count} rows at {place}" for place, count in places.items() if count > 1]


def exactly_these(rows: Rows, numbers: Iterable[int]) -> list[str]:
    """Checks that exactly these events have landed, once each."""
    landed, sent = Counter(row["number"] for row in rows), Counter(numbers)
    wrong = {"missing": sent - landed, "too many": landed - sent}
    return [f"{what}: {sorted(events.elements())}" for what, events in wrong.items() if events]


def in_order(rows: Rows) -> list[str]:
    """Checks that in each lane positions and batches follow the order of sending."""
    lanes: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row["_seq"], row["_position"])):
        lanes.setdefault(row["lane"], []).append(row)
    wrong = [] if lanes else ["there are no rows"]
    for lane, found in lanes.items():
        for column in ("number", "_batch_id"):
            values = [row[column] for row in found]
            if values != sorted(values):
                wrong.append(f"the order in {lane} of {column}: {values}")
    return wrong


def within_limit(rows: Rows, *, most: int) -> list[str]:
    """Checks that no batch exceeds the limit, and that there was more than one batch."""
    sizes = Counter(row["_batch_id"] for row in rows)
    if len(sizes) < 2:
        return [f"one batch was enough: {dict(sizes)}"]
    return [f"events of each batch: {dict(sizes)}"] if max(sizes.values()) > most else []


def read_in_tasks(reading: Sequence[Request], given: Rows, *, driver: int) -> list[str]:
    """Checks that only processes of both executors requested rows, and that tasks in both received them.

    Args:
        reading: the requests for rows recorded by the server.
        given: the payloads recorded by tasks.
        driver: the process id of the driver's Python.
    """
    wrong = []
    others = {(request.client.pid, request.client.command[:80]) for request in reading if not request.client.executor}
    if others:
        wrong.append(f"rows were read outside of executors, by {others}")
    asking = {request.client.executor for request in reading}
    if len(asking) != 2:
        wrong.append(f"rows were asked for by {asking}")
    with_rows = [told for told in given if told["payloads"]]
    executors = {told["executor"] for told in with_rows}
    if len(executors) != 2:
        wrong.append(f"rows came to tasks in {executors}")
    if not all(told["executor"] and told["pid"] != driver for told in with_rows):
        wrong.append("rows came to the driver")
    return wrong


def reread_identically(first: Mapping[int, Any], again: Mapping[int, Any], *, batches: Sequence[int]) -> list[str]:
    """Checks that both runs read exactly these batches with identical payloads."""
    both = sorted(first.keys() & again.keys())
    wrong = [] if both == list(batches) else [f"batches {both} were read twice"]
    wrong += [f"batch {batch} held nothing: this shows nothing" for batch in both if not first[batch]]
    return wrong + [f"batch {batch} was read as two different ones" for batch in both if again[batch] != first[batch]]
