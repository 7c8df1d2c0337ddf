"""Pages show untrusted names as text, complete and without markup."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaworks.alerts.raising import raise_alert
from deltaworks.alerts.silences import Silence
from deltaworks.console.pages import alerts, erasures, mutations, nights, quarantine, table, table_read_pages, tables
from deltaworks.console.rendering import Frame, render
from deltaworks.console.table_reads import TableReadResult
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import LocalObjects
from deltaworks.control.paths import erasures_summary
from deltaworks.control.paths import silence as silence_key
from deltaworks.control.summaries.erasures import ErasureRow, ErasuresSummary
from deltaworks.specs.catalog import Catalog
from tests.console_harness import page_context
from tests.unit.console import summaries_harness as made

MARKUP = (
    "<img src=x onerror=alert(1)>",
    '"><script>alert(1)</script>',
    "{{7*7}}{% raw %}",
    "'-alert(1)-'",
    "javascript:alert(1)",
    "&lt;b&gt;",
    "\u202egnp.exe\u2066",
    "a\nb\tc",
    "x" * 10_000,
    '" hx-get="/x" data-x="',
    "</title></svg></table>",
)
hostile = st.one_of(
    st.sampled_from(MARKUP),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00\r"), min_size=1, max_size=60),
)


class Page(HTMLParser):
    """A parsed page: its tags, attributes, and untrusted text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(name: str, view: Any) -> Page:
    frame = Frame(title="t", root="/air/deltaworks", address="/x", now=utc_now(), person="ada", menu=())
    page = Page(render(name, frame, view))
    for tag, attributes in page.tags:
        assert tag not in ("img", "iframe", "object", "embed", "base"), tag
        assert not [one for one in attributes if one.startswith("on")], attributes
        assert not (attributes.get("href") or "").lower().strip().startswith("javascript:")
        if tag == "script":
            assert str(attributes.get("src")).startswith("/air/deltaworks/assets/")
        if "hx-get" in attributes:
            assert str(attributes["hx-get"]).startswith("/air/deltaworks/")
    return page


def is_there(name: str, page: Page) -> bool:
    """Returns whether the text is on the page unchanged, or its beginning if it is truncated."""
    return name[:150] in page.text


examples = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
GAMES = {"pipeline": "games"}


@examples
@given(name=hostile)
def test_errors_reasons_and_readers_of_tables(catalog: Catalog, tmp_path: Path, name: str) -> None:
    objects = LocalObjects(tmp_path)
    plan = made.table("events").next_plan
    assert plan is not None
    broken = made.table("events", error=name, next_plan=plan.replace(reason=name), holds=made.held_by(name))
    made.put_tables(objects, "games", broken)

    assert is_there(name, shown("tables", tables.view(page_context(catalog, objects))))
    of_one = page_context(catalog, objects, values={**GAMES, "table": "events"})
    assert shown("table", table.view(of_one)).text.count(name[:150]) >= 3


@examples
@given(name=hostile)
def test_events_in_quarantine(catalog: Catalog, tmp_path: Path, name: str) -> None:
    objects = LocalObjects(tmp_path)
    made.put_quarantine(objects, "games", made.rows(name, 3, event=name, date=name, spec=name))

    page = shown("quarantine", quarantine.view(page_context(catalog, objects, values=GAMES)))

    assert page.text.count(name[:150]) >= 3
    assert is_there(name, shown("quarantines", quarantine.view_all(page_context(catalog, objects))))


@examples
@given(name=hostile)
def test_texts_of_alerts_and_silences(catalog: Catalog, tmp_path: Path, name: str) -> None:
    objects = LocalObjects(tmp_path)
    raise_alert(objects, cause="JOB_FAILED", subject=f"games {name}", summary=name)
    far = "2100-01-01T00:00:00+00:00"
    silence = Silence(id="s", pipeline="games", cause=name, subject=name, at=far, until=far, by=name, reason=name)
    objects.put(silence_key("s"), silence.encode())

    page = shown("alerts", alerts.view(page_context(catalog, objects)))

    assert page.text.count(name[:150]) >= 5


@examples
@given(name=hostile)
def test_erasure_requests(catalog: Catalog, tmp_path: Path, name: str) -> None:
    objects = LocalObjects(tmp_path)
    namespace = next(iter(catalog.namespaces))
    times = dict.fromkeys(("since", "received_at", "purge_by", "deadline_at"), "2026-03-01T00:00:00+00:00")
    rows = (ErasureRow(request_id=name, state=name, **times), ErasureRow(request_id=name, state="certified", **times))
    objects.put(erasures_summary(namespace), ErasuresSummary(namespace=namespace, requests=rows).encode())

    page = shown("erasures", erasures.view(page_context(catalog, objects)))

    assert page.text.count(name[:150]) >= 3


@examples
@given(name=hostile)
def test_skipped_work_of_a_maintenance_run(catalog: Catalog, tmp_path: Path, name: str) -> None:
    objects = LocalObjects(tmp_path)
    night = made.night("r1")
    tasks = tuple(
        task.replace(results=tuple(one.replace(subject=name, reason=name) for one in task.results))
        for task in night.tasks
    )
    made.put_nights(objects, "games", night.replace(run=name, date=name, tasks=tasks), made.night("r0"))

    page = shown("nights", nights.view(page_context(catalog, objects, values=GAMES, query={"run": name})))

    assert page.text.count(name[:150]) >= 4


@examples
@given(name=hostile)
def test_texts_of_tables(catalog: Catalog, tmp_path: Path, name: str) -> None:
    objects = LocalObjects(tmp_path)
    sample = {"event": name, "raw": name, "object": name, "reasons": [{"code": name, "path": name, "detail": name}]}
    commit = {"version": 1, "operation": name, "by": name, "run": name, "metrics": {name: name}}
    stretch = {"id": name, "final_id": name, "valid_from": name, "deleted": False}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            table_read_pages, "read_tables", lambda *_, **__: TableReadResult(rows=(sample, commit), problem=name)
        )
        patched.setattr(mutations, "read_tables", lambda *_, **__: TableReadResult(rows=(stretch,), problem=name))
        samples = table_read_pages.view_samples(page_context(catalog, objects, values=GAMES))
        history = table_read_pages.view_history(page_context(catalog, objects, values={**GAMES, "table": "events"}))
        query = {"org": name, "id": name}
        cascade = mutations.view_cascade(page_context(catalog, objects, values={"pipeline": "engagement"}, query=query))

    for page, view in (("samples", samples), ("history", history), ("cascade", cascade)):
        assert is_there(name, shown(page, view)), page
