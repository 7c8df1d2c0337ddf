"""Mutations: waiting requests, the last batches, and the history of an entity."""

from __future__ import annotations

from typing import Any

import pytest

from deltaworks.console.page_context import PageMissingError
from deltaworks.console.pages import mutations
from deltaworks.console.pages.mutations import MAX_INTERVALS, group_by_entity, view, view_cascade
from deltaworks.console.rendering import Frame, render
from deltaworks.console.table_reads import TableReadResult
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import LocalObjects
from deltaworks.control.paths import mutations_summary
from deltaworks.control.records.mutation import MutationCompletion, TableMutation
from deltaworks.control.summaries.jobs import MAX_BATCHES, record_batches, record_waiting_requests
from deltaworks.specs.catalog import Catalog
from tests.console_harness import page_context


def end(number: int) -> MutationCompletion:
    table = TableMutation(
        table="activity", rows=9, files_removed=1, files_added=1, version=number, attempts=2, pause_seconds=22
    )
    return MutationCompletion(
        pipeline="engagement",
        number=number,
        generation=1,
        outcome="applied",
        at=f"2026-03-01T12:{number % 60:02d}:00+00:00",
        requests={"rename": 3},
        tables=(table,),
        seconds={"resolve": 9, "merge": 20},
    )


def shown(catalog: Catalog, objects: LocalObjects) -> Any:
    return view(page_context(catalog, objects, values={"pipeline": "engagement"}))


def html(name: str, view: Any) -> str:
    frame = Frame(title="t", root="", address="/m", now=utc_now(), person="ada", menu=())
    return render(name, frame, view)


def test_the_last_batches_are_listed_once_newest_first(catalog: Catalog, objects: LocalObjects) -> None:
    record_batches(objects, "engagement", [end(number) for number in range(1, 40)])
    record_batches(objects, "engagement", [end(number) for number in range(30, MAX_BATCHES + 10)])
    batches = shown(catalog, objects).batches

    assert [batch["number"] for batch in batches] == list(range(MAX_BATCHES + 9, 9, -1))
    assert (batches[0]["conflicts"], batches[0]["pause_seconds"], batches[0]["total_seconds"]) == (1, 22, 29)


def test_waiting_requests_are_shown_with_the_batches(catalog: Catalog, objects: LocalObjects) -> None:
    record_batches(objects, "engagement", [end(1)])
    record_waiting_requests(
        objects, "engagement", requests=3_204, oldest_at="2026-03-01T11:54:00+00:00", checked_at="x"
    )
    page = shown(catalog, objects)

    assert (page.waiting, len(page.batches)) == (3_204, 1)
    assert "3,204 requests are waiting" in html("mutations", page)


def test_nothing_is_written_while_nothing_changes(objects: LocalObjects) -> None:
    for minute in range(3):
        record_waiting_requests(objects, "engagement", requests=0, oldest_at="", checked_at=f"12:0{minute}")

    item = objects.get(mutations_summary("engagement"))
    assert item is not None
    assert b"12:00" in item.data


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b"null", b'{"format": 99}', b"\xff\xfe"])
def test_a_damaged_summary_is_a_message_and_is_replaced(catalog: Catalog, objects: LocalObjects, torn: bytes) -> None:
    objects.put(mutations_summary("engagement"), torn)
    page = shown(catalog, objects)
    assert page.problem
    assert html("mutations", page)

    assert record_batches(objects, "engagement", [end(1)])
    assert len(shown(catalog, objects).batches) == 1


def test_a_pipeline_without_mutations_has_no_such_page(catalog: Catalog, objects: LocalObjects) -> None:
    with pytest.raises(PageMissingError):
        view(page_context(catalog, objects, values={"pipeline": "games"}))


def interval_row(name: str, final: str, until: str | None, **more: Any) -> dict[str, Any]:
    row = {"id": name, "final_id": final, "valid_from": None, "valid_to": until, "deleted": False, "hops": 1}
    return {**row, **more}


CHAIN = [
    interval_row("id1", "id4", "2026-01-03T00:00:00", hops=2),
    interval_row("id2", "id4", "2026-02-01T00:00:00"),
    interval_row("id2", "id9", None, valid_from="2026-03-01T00:00:00"),
]


def test_a_reused_id_belongs_to_two_entities() -> None:
    first, second = group_by_entity(CHAIN, "id2")

    assert ([move.id for move in first.intervals], first.final_id) == (["id1", "id2"], "id4")
    assert ([(move.id, move.is_requested_id) for move in second.intervals], second.final_id) == ([("id2", True)], "id9")


def cascade(
    catalog: Catalog, objects: LocalObjects, monkeypatch: pytest.MonkeyPatch, answer: TableReadResult, **query: str
) -> Any:
    monkeypatch.setattr(mutations, "read_tables", lambda *_, **__: answer)
    values = {"pipeline": "engagement"}
    return view_cascade(page_context(catalog, objects, values=values, query=query or {"org": "acme", "id": "id2"}))


def test_a_chain_is_a_list_in_the_order_of_time(
    catalog: Catalog, objects: LocalObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = html("cascade", cascade(catalog, objects, monkeypatch, TableReadResult(rows=tuple(CHAIN))))

    assert page.index("id1</span>") < page.index("2026-01-03") < page.index("2026-02-01")
    assert "has been used by 2 entities" in page


def test_at_most_two_hundred_intervals_are_shown(
    catalog: Catalog, objects: LocalObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = TableReadResult(rows=tuple(interval_row(f"id{n}", "end", None) for n in range(MAX_INTERVALS + 1)))
    page = cascade(catalog, objects, monkeypatch, many)

    assert (sum(len(entity.intervals) for entity in page.entities), page.is_truncated) == (MAX_INTERVALS, True)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (TableReadResult(), "its rows are as they arrived"),
        (TableReadResult(unfinished=True), "Try again"),
        (TableReadResult(problem="<b>no log</b>"), "&lt;b&gt;no log"),
    ],
)
def test_each_outcome_has_its_message(
    catalog: Catalog, objects: LocalObjects, monkeypatch: pytest.MonkeyPatch, answer: TableReadResult, words: str
) -> None:
    assert words in html("cascade", cascade(catalog, objects, monkeypatch, answer))


def test_nothing_is_read_without_organisation_and_id(
    catalog: Catalog, objects: LocalObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> TableReadResult:
        raise AssertionError("nothing is to be read")

    monkeypatch.setattr(mutations, "read_tables", read)

    page = view_cascade(page_context(catalog, objects, values={"pipeline": "engagement"}, query={"org": "acme"}))

    assert "Enter an organisation and an id." in html("cascade", page)
