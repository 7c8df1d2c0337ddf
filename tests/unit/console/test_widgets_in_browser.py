"""The pages of widgets in a browser: rows arrive without a reload, as text, in both themes and on a phone.

Skipped without `chromium` on the PATH. DELTAWORKS_SCREENSHOTS saves pictures.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from deltaworks.console.widget_streams import WidgetStreams
from deltaworks.control import paths
from tests.browser_page import launch_chromium
from tests.console_harness import ConsoleHarness, console_harness
from tests.screenshots import collect_console_errors
from tests.unit.console.test_widget_streams import serving
from tests.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.integration
PATIENCE_MILLISECONDS = 60_000
AT = datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)
HOSTILE = "<img src=x onerror=window.__xss=1>{{7*7}}\u202e"
VIEWS = """\
views:
  - {name: popular, sql: popular.sql, reads: [events], description: "Films by active views, most watched first",
     widget: {title: Most popular now, max_rows: 8, every_seconds: 1}}
  - {name: total, sql: total.sql, reads: [events], widget: {title: Viewers now, every_seconds: 1}}
  - {name: pending, sql: pending.sql, reads: [events_per_hour], widget: {title: Events by hour}}
"""
QUERIES = {
    "popular.sql": """\
SELECT max(event_time) AS newest_at, film, count(*) AS concurrent_viewers, avg(share) AS rebuffering_share
FROM events GROUP BY film ORDER BY concurrent_viewers DESC, film
""",
    "total.sql": """\
SELECT max(event_time) AS newest_at, count(*) AS concurrent_viewers, count(DISTINCT film) AS films FROM events
""",
    "pending.sql": "SELECT hour, n FROM events_per_hour",
}


@pytest.fixture
def browser() -> Iterator[Any]:
    with launch_chromium() as started:
        yield started


@contextmanager
def opened(browser: Any, address: str, *, width: int = 1400, theme: str = "light") -> Iterator[Page]:
    """A page whose errors fail the test."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, extra_http_headers={"X-Person": "ada"}
    )
    complaints: list[str] = []
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MILLISECONDS)
    page.on("console", functools.partial(collect_console_errors, complaints))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address)
    yield page
    context.close()
    assert complaints == []


@contextmanager
def site(harness: ConsoleHarness) -> Iterator[str]:
    """The console with three widgets, one of which has no table."""
    folder = harness.catalog.root / "include" / "pipelines" / "games"
    (folder / "pipeline.yaml").write_text((folder / "pipeline.yaml").read_text() + VIEWS)
    for name, sql in QUERIES.items():
        (folder / name).write_text(sql)
    streams = WidgetStreams()
    try:
        with serving(console_harness(harness.catalog.root, streams=streams).client.app) as address:
            yield address
    finally:
        eventually(lambda: streams.readers == 0, "no reader is left over")
        streams.close()


def watch(harness: ConsoleHarness, viewers: Sequence[tuple[str, int]]) -> None:
    films = [film for film, count in viewers for _ in range(count)]
    shares = [0.0125 * (len(film) % 5) for film in films]
    rows = pa.table({"event_time": [AT] * len(films), "film": films, "share": shares})
    write_deltalake(harness.catalog.environment.lake.uri(paths.table("games", "events")), rows, mode="append")


def picture(page: Page, name: str) -> None:
    folder = os.environ.get("DELTAWORKS_SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def films_of(page: Page) -> list[str]:
    return page.locator("tbody tr td:nth-child(1)").all_inner_texts()


def test_rows_change_without_a_reload_and_are_text(harness: ConsoleHarness, browser: Any) -> None:
    watch(harness, [("The Long Night", 12), ("Tidewater", 9), (HOSTILE, 4)])
    with site(harness) as base, opened(browser, f"{base}/widgets/games/popular") as page:
        page.get_by_text("Changed at").wait_for()
        assert films_of(page) == ["The Long Night", "Tidewater", HOSTILE]
        page.evaluate("() => { window.isFirstLoad = true; }")

        watch(harness, [("Tidewater", 5)])

        page.locator("tbody tr:first-child", has_text="Tidewater").wait_for()
        assert films_of(page) == ["Tidewater", "The Long Night", HOSTILE]
        assert page.evaluate("[window.isFirstLoad, window.__xss ?? null]") == [True, None]


def test_a_paused_page_keeps_its_rows_and_shows_the_newest_when_it_goes_on(
    harness: ConsoleHarness, browser: Any
) -> None:
    watch(harness, [("Ice", 2)])
    with site(harness) as base, opened(browser, f"{base}/widgets/games/total") as page:
        viewers = page.locator("dd").first
        viewers.get_by_text("2", exact=True).wait_for()
        page.get_by_role("button", name="pause").click()
        with opened(browser, f"{base}/widgets/games/total") as other:
            watch(harness, [("Ice", 3)])
            other.locator("dd").first.get_by_text("5", exact=True).wait_for()
        assert viewers.inner_text() == "2"

        page.get_by_role("button", name="resume").click()

        viewers.get_by_text("5", exact=True).wait_for()


def test_pages_of_widgets_fit_in_both_themes_and_on_a_phone(harness: ConsoleHarness, browser: Any) -> None:
    long = "A Film Whose Name Is Much Longer Than The Others, And Its Second Part"
    films = [("The Long Night", 40), ("Tidewater", 31), (long, 22), ("Ice", 13)]
    watch(harness, films + [(f"Short {letter}", 3) for letter in "abcdef"])
    with site(harness) as base:
        for name, text in (("popular", "Changed at"), ("total", "Changed at"), ("pending", "does not exist")):
            for theme in ("light", "dark"):
                for width in (1400, 390):
                    with opened(browser, f"{base}/widgets/games/{name}", width=width, theme=theme) as page:
                        page.get_by_text(text).wait_for()
                        picture(page, f"widget-{name}-{theme}-{width}")
                        assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, theme)
        for width in (1400, 390):
            with opened(browser, f"{base}/widgets", width=width) as page:
                picture(page, f"widgets-{width}")
                assert page.evaluate("document.documentElement.scrollWidth") <= width
