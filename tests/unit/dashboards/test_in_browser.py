"""The page in a real browser: loads nothing, nothing overlaps or is cut, both themes are readable.

Skipped without `chromium` on the PATH. DELTAWORKS_SCREENSHOTS saves pictures of both themes.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from deltaworks.charts.drawing import ChartOptions
from deltaworks.charts.page import section, with_legend, write_page
from deltaworks.charts.plots import line_chart, row_chart
from deltaworks.console.page_builder import DOCUMENT_HEADERS
from deltaworks.console.rendering import assets
from deltaworks.dashboards.answers import DashboardAnswer
from deltaworks.dashboards.page import dashboard_page
from deltaworks.specs.dashboards import DashboardSpec
from tests.unit.charts.test_reports import BARS, LINES
from tests.unit.charts.test_reports import OPTIONS as LINE_OPTIONS
from tests.unit.dashboards.test_page import ALL, HOSTILE, MARKS, SPAN, answer, at, page, panel, served_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = shutil.which("chromium")
_ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
#: Texts that overlap or leave the drawing, in screen pixels.
_UNREADABLE = """() => [...document.querySelectorAll('.chart svg')].flatMap(svg => {
  const edge = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text.tick, text.row, text.axis, .flag text')]
    .map(t => [t.textContent, t.getBoundingClientRect()]);
  const out = texts.filter(([, r]) => r.left < edge.left - 1 || r.right > edge.right + 1 || r.bottom > edge.bottom + 1);
  const over = texts.filter(([, a], i) => texts.some(([, b], j) => j > i &&
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2));
  return [...out, ...over].map(([text]) => svg.getAttribute('aria-label') + ': ' + text);
})"""
_CONTRAST = """() => {
  const light = c => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)
    .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const ground = getComputedStyle(document.querySelector('section')).backgroundColor;
  const of = (selector, key) =>
    [...document.querySelectorAll(selector)].map(e => ratio(getComputedStyle(e)[key], ground));
  return {text: Math.min(...of('h2, footer, td', 'color')), ticks: Math.min(...of('svg text.tick', 'fill')),
    flags: Math.min(...of('.flag rect', 'fill')),
    series: Math.min(...of('.legend i', 'backgroundColor'))};
}"""

EIGHT = answer(
    panel("line", x="minute", y="n", by="isp", title="Eight series", wide=True),
    "minute isp n",
    *(
        (at(minute), f"provider number {number}", 10 * number + minute % 7)
        for minute in range(200)
        for number in range(8)
    ),
)
LONG = answer(
    panel("bar", x="name", y="n", title="Long names"),
    "name n",
    *((f"a name that is much too long for its place, {number}", 10.0**number) for number in range(9)),
)
FAILED = answer(panel("table", title="Failed"), "", problem="Binder Error: no such column " * 6)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no `chromium` on the PATH, the browser that opens the page")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="module", params=["light", "dark"])
def theme(request: pytest.FixtureRequest, browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page with every chart type in one theme, opened once."""
    file = tmp_path_factory.mktemp("dashboard") / "page.html"
    file.write_text(
        page(*ALL, EIGHT, LONG, FAILED, marks=MARKS, title="Operations", description="Every kind of chart.")
    )
    opened = browser.new_page(viewport={"width": 1300, "height": 900}, color_scheme=request.param)
    opened.requests = []
    opened.on("request", lambda sent: opened.requests.append(sent.url))
    opened.goto(file.as_uri())
    yield opened
    folder = os.environ.get("DELTAWORKS_SCREENSHOTS")
    if folder:
        opened.screenshot(path=str(Path(folder) / f"dashboard-{request.param}.png"), full_page=True)
    opened.close()


@pytest.fixture
def shown(theme: Page) -> Page:
    """That page at the size of a desk's screen, with the pointer over no chart."""
    theme.set_viewport_size({"width": 1300, "height": 900})
    theme.mouse.move(0, 0)
    return theme


def test_it_loads_nothing_and_its_labels_can_be_read(shown: Page) -> None:
    assert [url for url in shown.requests if not url.startswith("file:")] == []
    assert len(shown.requests) == 1
    assert shown.evaluate(_UNREADABLE) == []
    contrast = shown.evaluate(_CONTRAST)
    # WCAG 2.2: 4.5 for text (1.4.3), 3 for graphics (1.4.11); series markers are next to their names.
    assert contrast["text"] >= 4.5, contrast
    assert contrast["ticks"] >= 4.5, contrast
    assert contrast["flags"] >= 4.5, contrast
    assert contrast["series"] >= 2.4, contrast


@pytest.mark.parametrize("width", [360, 800, 1300])
def test_no_width_makes_the_page_scroll_sideways(shown: Page, width: int) -> None:
    shown.set_viewport_size({"width": width, "height": 900})

    assert shown.evaluate("() => document.documentElement.scrollWidth") <= width


def test_a_pointer_over_a_chart_shows_its_values(shown: Page) -> None:
    strip = shown.locator("section", has_text="Eight series").locator(".hit").nth(50)
    tip = strip.locator(".tip")
    assert tip.evaluate("e => getComputedStyle(e).visibility") == "hidden"

    strip.locator("> rect").hover()

    assert tip.evaluate("e => getComputedStyle(e).visibility") == "visible"
    box, chart = tip.locator(".box").bounding_box(), shown.locator("section", has_text="Eight series").bounding_box()
    assert box is not None
    assert chart is not None
    assert chart["x"] <= box["x"] <= box["x"] + box["width"] <= chart["x"] + chart["width"]
    assert "provider number 7" in (tip.text_content() or "")


def test_the_charts_of_reports_can_be_read(browser: Any, tmp_path: Path) -> None:
    bars = row_chart(ChartOptions(title="Ratios", y_title="ratio", wide=True), BARS, grouped=True, reference=1)
    lines = line_chart(LINE_OPTIONS, LINES, LINES.span, points=True, is_log=True)
    sections = [section("Ratios", with_legend(bars, BARS)), section("Files", with_legend(lines, LINES))]
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    page.goto(write_page(tmp_path / "report.html", title="Report", summary="", sections=sections).as_uri())

    assert page.evaluate(_UNREADABLE) == []
    # The title of a point is on top, so that the pointer reaches it.
    center = page.locator(".point").first.evaluate(
        "e => { const r = e.getBoundingClientRect(); "
        "return document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2).getAttribute('class') }"
    )
    assert center == "point s0"
    page.close()


def test_panels_move_without_a_reload_under_the_consoles_policy(browser: Any) -> None:
    shown = browser.new_page()
    drawn = itertools.count(1)
    address = "http://console.test/dashboards/shop/noc"

    def serve(route: Any) -> None:
        if route.request.url.endswith("htmx.min.js"):
            route.fulfill(body=assets()["htmx.min.js"].data, content_type="text/javascript")
            return
        value = answer(panel("number", y="n", title="Viewers"), "n", (next(drawn),))
        text = served_page(value, refresh_seconds=1, script="../../assets/1/htmx.min.js")
        headers = dict(DOCUMENT_HEADERS) | {"Content-Type": "text/html; charset=utf-8"}
        route.fulfill(body=text, headers=headers)

    shown.route("**/*", serve)
    shown.goto(address)
    shown.evaluate("() => { window.isFirstLoad = true; }")
    shown.wait_for_function("() => Number(document.querySelector('p.number').textContent) >= 3", timeout=60_000)

    assert shown.evaluate("() => window.isFirstLoad")
    assert shown.locator("#renewed").count() == 1
    shown.close()


def filtered_page(address: str) -> str:
    """The page of a dashboard with two filters and a declared segment, as the console serves it at an address."""
    declared = {
        "name": "noc",
        "title": "Operations",
        "filters": ["isp", "device"],
        "choices": "choices.sql",
        "segments": [{"name": "TVs", "filters": {"device": "tv"}}],
        "panels": [{"title": "t", "chart": "table", "sql": "t.sql"}],
    }
    shown = DashboardAnswer(
        pipeline="shop",
        dashboard=DashboardSpec.model_validate(declared),
        span=SPAN,
        at=SPAN.until,
        panels=(answer(panel("number", y="n", title="Viewers"), "n", (7,)),),
        filters={name: value for name, value in parse_qsl(urlsplit(address).query) if name in ("isp", "device")},
        choices={"isp": ("Example & Co", "Other"), "device": ("phone", "tv")},
    )
    return dashboard_page(shown, refresh_seconds=60, is_served=True, segments_script="../../assets/1/segments.js")


def serve_filtered(route: Any) -> None:
    if route.request.url.endswith("segments.js"):
        route.fulfill(body=assets()["segments.js"].data, content_type="text/javascript")
        return
    headers = dict(DOCUMENT_HEADERS) | {"Content-Type": "text/html; charset=utf-8"}
    route.fulfill(body=filtered_page(route.request.url), headers=headers)


def test_a_segment_is_saved_by_name_used_and_deleted(browser: Any) -> None:
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.route("**/*", serve_filtered)
    shown, address = context.new_page(), "http://console.test/dashboards/shop/noc"
    shown.goto(address)
    save = shown.get_by_role("button", name="save segment")
    assert not save.is_visible(), "there is no filter to save"

    shown.get_by_label("isp").select_option("Example & Co")
    shown.get_by_label("from").fill("2026-03-01T00:00")
    shown.get_by_role("button", name="show").click()
    shown.get_by_label("Name of the segment").fill(HOSTILE)
    save.click()
    shown.goto(f"{address}?device=phone")
    assert shown.get_by_role("link", name=HOSTILE).get_attribute("aria-current") is None
    shown.get_by_label("Name of the segment").fill("Phones")
    save.click()
    assert shown.get_by_role("link", name="Phones").get_attribute("aria-current") == "page"

    other = context.new_page()
    other.goto(address)
    assert other.locator("a.segment").all_inner_texts() == ["TVs", HOSTILE, "Phones"]
    other.get_by_role("link", name=HOSTILE).click()
    other.wait_for_url("**?isp=Example+%26+Co")
    assert other.get_by_label("isp").input_value() == "Example & Co"
    assert other.evaluate("() => window.__xss ?? null") is None
    other.get_by_role("button", name=f"Delete segment {HOSTILE}").click()
    assert other.locator("a.segment").all_inner_texts() == ["TVs", "Phones"]
    shown.get_by_role("link", name=HOSTILE).wait_for(state="detached")

    other.goto("http://console.test/dashboards/shop/other")
    assert other.locator("a.segment").all_inner_texts() == ["TVs"], "another dashboard has its own"
    context.close()


@pytest.mark.parametrize(
    "stored", ["no JSON", "{}", "[1, null]", '[{"name": "x"}]', '[{"name": "x", "query": "no=1"}]']
)
def test_unusable_segments_of_the_browser_are_ignored(browser: Any, stored: str) -> None:
    context = browser.new_context()
    context.route("**/*", serve_filtered)
    context.add_init_script(f"localStorage.setItem('deltaworks.segments:/dashboards/shop/noc', {json.dumps(stored)})")
    complaints: list[str] = []
    shown = context.new_page()
    shown.on("pageerror", lambda error: complaints.append(str(error)))

    shown.goto("http://console.test/dashboards/shop/noc?device=tv")

    shown.get_by_role("button", name="save segment").wait_for()
    assert (shown.locator("a.segment").all_inner_texts(), complaints) == (["TVs"], [])
    context.close()


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_saved_segments_fit_on_every_screen(browser: Any, scheme: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 700}, color_scheme=scheme)
    context.route("**/*", serve_filtered)
    shown = context.new_page()
    for device, name in (("tv", "Televisions in living rooms"), ("phone", "Phones")):
        shown.goto(f"http://console.test/dashboards/shop/noc?device={device}&isp=Other")
        shown.get_by_label("Name of the segment").fill(name)
        shown.get_by_role("button", name="save segment").click()

    assert shown.evaluate("() => document.documentElement.scrollWidth") <= width
    if folder := os.environ.get("DELTAWORKS_SCREENSHOTS"):
        shown.screenshot(path=str(Path(folder) / f"segments-{scheme}-{width}.png"))
    context.close()
