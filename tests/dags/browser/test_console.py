"""The console in Airflow's API server, in a browser: readable, accessible, and safe against untrusted text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.objects import open_objects
from deltaworks.control.summaries.erasures import ErasureRow, ErasuresSummary
from deltaworks.control.summaries.stream import BatchSummary, ProblemSummary, RecentBatches
from deltaworks.specs.project import load_catalog
from tests.console_harness import ago, write_process_heartbeat
from tests.dags.airflow_project import write_project
from tests.dags.browser.airflow_site import AirflowSite, running_airflow
from tests.dags.browser.trigger_form import CHROMIUM, logged_in
from tests.records import record_of
from tests.unit.dashboards.dashboard_harness import START, put

pytestmark = pytest.mark.integration

PAGES = (
    "/",
    "/streams/games",
    "/streams/games?span=24h",
    "/streams/games/batches/812",
    "/dag/games__stream",
    "/dag/none",
    "/dashboards",
    "/erasures",
    "/erasures/players/certificates",
    "/widgets",
    "/widgets/games/busiest",
)
DASHBOARD = "/dashboards/games/noc?from=2026-03-01&to=2026-03-02"
DASHBOARDS = """\
dashboards:
  - name: noc
    title: Operations
    panels:
      - {title: Events by hour, chart: bar, x: hour, y: n, sql: panels/events.sql}
      - {title: All events, chart: number, y: n, sql: panels/total.sql}
"""
VIEWS = """\
views:
  - name: busiest
    sql: busiest.sql
    reads: [events_per_hour]
    widget: {title: Busiest hours, max_rows: 3, every_seconds: 1}
"""
BUSIEST = "SELECT hour, n FROM events_per_hour ORDER BY n DESC"
PRIVACY = "privacy: {namespace: players, fields: [{path: secret, action: drop}]}\n"
HOSTILE = '<img src=x onerror=window.__xss=1>"><script>window.__xss=1</script>{{7*7}}\u202e'
#: Pages that answer with 404, which a browser reports.
_REPORTED = ("Failed to load resource: the server responded with a status of 404",)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose streams contain untrusted text."""
    root = write_project(tmp_path_factory.mktemp("console") / "project")
    declared = root / "include" / "pipelines" / "games" / "pipeline.yaml"
    declared.write_text(declared.read_text() + PRIVACY + DASHBOARDS + VIEWS)
    (declared.parent / "busiest.sql").write_text(BUSIEST)
    panels = declared.parent / "panels"
    panels.mkdir()
    (panels / "events.sql").write_text("SELECT hour, n FROM events_per_hour WHERE hour >= $from AND hour < $to")
    (panels / "total.sql").write_text("SELECT sum(n) AS n FROM events_per_hour")
    catalog = load_catalog("local", root=root, skip_invalid=True)
    hours = [START + timedelta(hours=number) for number in range(10)]
    rows = [{"hour": at, "n": 100 + 7 * at.hour, "event_date": at.date()} for at in hours]
    put(catalog, "events_per_hour", rows, "games")
    objects = open_objects(catalog.environment.lake)
    error = {"condition": HOSTILE, "message": HOSTILE, "hint": HOSTILE}
    held = ({"table": HOSTILE, "reason": "suspended", "since_batch": 790, "at": ago(4_000), "message": HOSTILE},)
    facts: dict[str, Any] = {"error": error, "held": held, "ui": "javascript:window.__xss=1", "host": HOSTILE}
    write_process_heartbeat(objects, paths.pipeline_control("games"), "games", oldest_pending_at=ago(600), **facts)
    write_process_heartbeat(objects, paths.pipeline_control("edits"), "edits", written_at=ago(4_000))
    batches = tuple(
        record_of(
            BatchSummary,
            batch_id=812 - back,
            at=ago(60 * back),
            rows=1_000 + back,
            quarantined=1,
            bytes=3_000,
            prepare_seconds=3,
            commit_seconds=1,
            complete_seconds=0.5,
            oldest_pending_seconds=30,
            arrival_ages=(9, 40),
        )
        for back in range(60, -1, -1)
    )
    record = RecentBatches(
        pipeline="games",
        written_at=iso_now(),
        batches=batches,
        problems=(ProblemSummary(at=iso_now(), text=HOSTILE),),
    )
    objects.put(paths.recent_batches("games"), record.encode())
    terms = {
        "since": ago(60),
        "received_at": ago(29 * 86_400),
        "purge_by": ago(9 * 86_400),
        "deadline_at": ago(-86_400),
    }
    states = {"e1": "certified", "e2": "received", HOSTILE: "suppressed"}
    rows = tuple(ErasureRow(request_id=name, state=state, **terms) for name, state in states.items())
    summary = ErasuresSummary(namespace="players", requests=rows)
    objects.put(paths.erasures_summary("players"), summary.encode())
    return root


@pytest.fixture(scope="module")
def site(airflow_database: None, project: Path) -> Iterator[AirflowSite]:
    if CHROMIUM is None:
        pytest.skip("no `chromium` on the PATH, the browser that opens the pages")
    with running_airflow(project=project) as site:
        yield site


class MonitoredPage:
    """A browser page that records dialogs, foreign requests and errors."""

    def __init__(self, page: Any, site: AirflowSite) -> None:
        self.page, self.site = page, site
        self.wrong: list[str] = []
        page.on("console", lambda said: self._note(said.type, said.text))
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", self._request)

    def open(self, path: str) -> None:
        answer = self.page.goto(f"{self.site.url}/deltaworks{path}")
        # A page whose data are still being read comes back by itself, which would abort the next one.
        while answer is not None and "refresh" in answer.headers:
            with self.page.expect_navigation() as navigation:
                pass
            answer = navigation.value

    def _note(self, kind: str, text: str) -> None:
        if kind == "error" and not text.startswith(_REPORTED):
            self.wrong.append(text)

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.site.url, "data:")):
            self.wrong.append(f"a request to {request.url}")


@pytest.fixture(scope="module")
def monitored_page(site: AirflowSite) -> Iterator[MonitoredPage]:
    with logged_in(site) as page:
        yield MonitoredPage(page, site)


def violations(page: Any) -> list[str]:
    """Returns axe's WCAG violations, from a session without the page's content security policy."""
    import axe_playwright_python

    source = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
    session = page.context.new_cdp_session(page)
    session.send("Runtime.evaluate", {"expression": source})
    program = "axe.run().then(all => JSON.stringify(all.violations.map(one => [one.id, one.nodes.map(n => n.html)])))"
    answer = session.send("Runtime.evaluate", {"expression": program, "awaitPromise": True, "returnByValue": True})
    found: list[Any] = json.loads(answer["result"]["value"])
    return [f"{name}: {nodes[:3]}" for name, nodes in found]


@pytest.mark.parametrize("width", [1280, 320])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_is_readable_in_both_themes_and_on_a_phone(
    monitored_page: MonitoredPage, theme: str, width: int
) -> None:
    page = monitored_page.page
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=theme)
    for path in PAGES:
        monitored_page.open(path)
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, path
        assert violations(page) == [], path

    assert monitored_page.wrong == []


def test_untrusted_text_is_shown_and_not_executed(monitored_page: MonitoredPage) -> None:
    for path in PAGES:
        monitored_page.open(path)
        assert monitored_page.page.evaluate("window.__xss") is None, path
    monitored_page.open("/streams/games")

    assert HOSTILE[:30] in monitored_page.page.inner_text("main")
    assert monitored_page.wrong == []


def test_a_dashboard_is_drawn_and_loads_nothing(monitored_page: MonitoredPage) -> None:
    page = monitored_page.page
    page.set_viewport_size({"width": 1280, "height": 900})
    monitored_page.open("/dashboards")
    page.get_by_role("link", name="Operations").click()
    page.get_by_role("heading", name="Operations").wait_for()
    monitored_page.open(DASHBOARD)

    assert page.get_by_text("This panel failed").count() == 0
    assert page.locator("main svg").count() >= 1
    page.get_by_role("link", name="all dashboards").click()
    assert page.get_by_role("heading", name="Dashboards").is_visible()
    assert monitored_page.wrong == []


def test_a_page_updates_itself_and_keeps_the_focus(monitored_page: MonitoredPage) -> None:
    page = monitored_page.page
    monitored_page.open("/")
    page.focus("#stream-games")
    with page.expect_response(lambda answer: "fragment=1" in answer.url):
        page.evaluate("htmx.trigger(document.getElementById('live'), 'renew')")
    page.wait_for_timeout(200)

    assert page.evaluate("document.activeElement.id") == "stream-games"


def test_a_widget_shows_a_change_of_the_lake_without_a_reload(monitored_page: MonitoredPage, project: Path) -> None:
    page = monitored_page.page
    page.set_viewport_size({"width": 1280, "height": 900})
    monitored_page.open("/widgets")
    page.get_by_role("link", name="Busiest hours").click()
    numbers = page.locator("tbody td.number")
    numbers.first.get_by_text("233", exact=True).wait_for()
    page.evaluate("() => { window.isFirstLoad = true; }")

    later = START + timedelta(hours=10)
    rows = [{"hour": later, "n": 900, "event_date": later.date()}]
    put(load_catalog("local", root=project, skip_invalid=True), "events_per_hour", rows, "games")

    numbers.first.get_by_text("900", exact=True).wait_for()
    assert numbers.all_inner_texts() == ["900", "233", "226"]
    assert page.evaluate("() => window.isFirstLoad")
    assert monitored_page.wrong == []


def test_airflows_navigation_shows_the_console_in_its_frame(monitored_page: MonitoredPage) -> None:
    page = monitored_page.page
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{monitored_page.site.url}/plugin/deltaworks")
    frame = page.frame_locator("iframe")
    frame.locator("#stream-games").click()

    heading = frame.get_by_role("heading", name="Stream games")
    heading.wait_for()
    assert heading.is_visible()
