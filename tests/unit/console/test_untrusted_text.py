"""Untrusted names, messages and addresses of any length and script are text on every page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaworks.alerts.raising import raise_alert
from deltaworks.console.rendering import is_web_url
from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.summaries.stream import BatchSummary, ProblemSummary, RecentBatches
from tests.console_harness import ConsoleHarness, console_harness
from tests.examples import examples
from tests.records import record_of

PAGES = ("/", "/streams/games", "/streams/games/batches/812", "/dag/games__stream")
CLASSICS = (
    "<img src=x onerror=window.__xss=1>",
    '"><script>window.__xss=1</script>',
    "{{7*7}}",
    "' hx-get='/x' hx-trigger='load",
    "javascript:window.__xss=1",
    "\u202eevil\u2066",
    "a\nb\r\nc",
    "=cmd|' /C calc'!A0",
    "x" * 10_000,
)
TEXTS = st.sampled_from(CLASSICS) | st.text(
    st.characters(blacklist_categories=("Cs", "Cc")) | st.sampled_from("<>&\"'{}%\u202e\u2066"),
    min_size=1,
    max_size=200,
)


class PageParser(HTMLParser):
    """Collects a page's text and the elements that a browser would act on."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.elements: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(html: str) -> PageParser:
    page = PageParser()
    page.feed(html)
    return page


def page_structure(page: PageParser) -> list[tuple[str, tuple[str, ...]]]:
    """Returns the elements of a page with their attribute names."""
    return [(tag, tuple(sorted(attributes))) for tag, attributes in page.elements]


def write(harness: ConsoleHarness, text: str) -> None:
    """Writes a text to every record whose text a stream page shows."""
    error = {"condition": text, "message": text, "hint": text}
    held = ({"table": text, "reason": text, "since_batch": 1, "at": iso_now(), "condition": text, "message": text},)
    harness.write_heartbeat("games", state="failed", error=error, held=held, ui=text, host=text, run=f"{text}/r/t/1")
    batch = record_of(BatchSummary, batch_id=812, at=iso_now())
    problem = ProblemSummary(at=iso_now(), text=text)
    record = RecentBatches(pipeline="games", written_at=iso_now(), batches=(batch,), problems=(problem,))
    harness.objects.put(paths.recent_batches("games"), record.encode())
    prepared = {
        **{"format": 1, "pipeline": "games", "generation": 1, "batch_id": 812, "spark_batch_id": 0, "checkpoint": 1},
        **{"owner": text, "owner_epoch": 1, "run": text, "prepared_at": iso_now(), "ingested_at_us": 1},
        **{"spec_fingerprint": text, "code_version": text, "offsets": {text: text}, "source": {text: text}},
        "tables": [{"table": text, "writer": text, "rows": 1, "files": [], "new_columns": [{"name": text}]}],
    }
    harness.objects.put(paths.prepared_batch("games", 1, 812), json.dumps(prepared).encode())
    raise_alert(harness.objects, cause="JOB_FAILED", subject="games__gold", summary=text, detail={"next_step": text})


@pytest.fixture
def shapes(project: Path) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """The page structures with a harmless text."""
    harness = console_harness(project)
    write(harness, "harmless")
    return {path: page_structure(parsed(harness.get(path).text)) for path in PAGES}


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS)
def test_untrusted_text_is_text_on_every_page(
    project: Path, shapes: dict[str, list[tuple[str, tuple[str, ...]]]], text: str
) -> None:
    harness = console_harness(project)
    write(harness, text)
    for path in PAGES:
        answer = harness.get(path)
        page = parsed(answer.text)
        assert answer.status_code == 200
        assert page_structure(page) == shapes[path], path
        assert not [href for _, item in page.elements if (href := item.get("href")) and href.startswith("javascript")]
    shown = re.sub(r"\s+", " ", parsed(harness.get("/streams/games").text).text)
    assert re.sub(r"\s+", " ", text[:500]).strip() in shown


@pytest.mark.parametrize("text", CLASSICS)
def test_only_web_addresses_become_links(text: str) -> None:
    assert not is_web_url(text)
    assert is_web_url("https://driver.example:4040/jobs?x=1")
