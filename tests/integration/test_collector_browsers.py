"""Browser clients in Chromium against a collector process: the documented snippet, and Segment's SDK."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from deltaworks.specs.catalog import PROJECT_ROOT
from sandbox.servers.object_store import free_port
from tests.browser_page import PageSite, launch_chromium, serve_site
from tests.collector_process import KEY, CollectorProcess, declaration
from tests.unit.collector.test_clients import client
from tests.waiting import eventually

PINS = Path(__file__).parent / "sdks" / "package.json"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launch_chromium() as browser:
        yield browser


@pytest.fixture
def site() -> Iterator[PageSite]:
    with serve_site() as site:
        yield site


@pytest.fixture
def collector(tmp_path: Path, site: PageSite) -> Iterator[CollectorProcess]:
    """A collector for the site's events; it restarts on the same port."""
    port = free_port()
    listen = {"host": "127.0.0.1", "port": port, "metrics_port": 0, "public_host": f"127.0.0.1:{port}"}
    declared = declaration(listen=listen)
    declared["sources"]["games"]["origins"] = [site.origin]
    process = CollectorProcess(tmp_path, declared).start()
    yield process
    process.kill()


@pytest.fixture
def snippet(site: PageSite, collector: CollectorProcess) -> str:
    """The docs' page, which sends every 200 ms."""
    code = client("browser").replace("https://events.example.org", collector.url)
    site.page = f"<script>{code.replace('the key of the source', KEY).replace('5000', '200')}</script>"
    return site.origin


def taken(collector: CollectorProcess) -> int:
    """Returns how many events the process has acknowledged, by its metrics."""
    text = httpx2.get(collector.metrics_url).text
    start = "deltaworks_collector_events_total{"
    return sum(int(float(line.rpartition(" ")[2])) for line in text.splitlines() if line.startswith(start))


def waits(page: Any, name: str) -> bool:
    """Whether the page's persistent queue contains an event."""
    return bool(page.evaluate("name => JSON.parse(localStorage.events || '[]').some(e => e.event === name)", name))


def sees(page: Any, condition: Any, what: str) -> None:
    """Waits for a condition while the browser handles its events."""
    eventually(lambda: (page.wait_for_timeout(50), condition())[1], what)


def test_the_snippet_sends_periodically_and_on_page_unload(
    browser: Any, snippet: str, collector: CollectorProcess
) -> None:
    page = browser.new_context().new_page()
    page.goto(snippet)
    page.evaluate("for (let n = 0; n < 150; n++) track('played', {n})")  # more than a batch
    sees(page, lambda: taken(collector) == 150, "the interval sends all of them")
    page.evaluate("busy = true; track('left', {})")  # the interval would send it, and the page's end shall
    page.goto("about:blank")
    sees(page, lambda: taken(collector) == 151, "what was tracked last is sent as the page is left")
    page.context.close()
    collector.terminate()

    events = collector.spooled_events()
    assert [event["properties"]["n"] for event in events if event["event"] == "played"] == list(range(150))
    assert len({event["_collector"]["id"] for event in events}) == len(events) == 151


def test_a_page_loses_no_event_while_the_collector_is_unavailable_even_on_unload(
    browser: Any, snippet: str, collector: CollectorProcess
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(snippet)
    page.evaluate("track('before', {})")
    sees(page, lambda: taken(collector) == 1, "the first event is taken")

    collector.kill()
    page.evaluate("track('away', {}); flush()")
    sees(page, lambda: page.evaluate("!busy"), "sending failed")
    page.close(run_before_unload=False)  # only its origin's storage remains

    page = context.new_page()
    page.goto(snippet)
    assert waits(page, "away"), "what was not taken outlives the page"
    page.evaluate("track('after', {})")
    collector.start()
    sees(page, lambda: taken(collector) == 2, "what waited is taken, and what came since")
    sees(page, lambda: not waits(page, "away") and not waits(page, "after"), "what was taken is forgotten")
    context.close()
    collector.terminate()

    events = collector.spooled_events()
    assert [event["event"] for event in events] == ["before", "away", "after"]
    assert len({event["_collector"]["id"] for event in events}) == 3


def test_a_script_can_read_every_response_and_another_sites_script_none(
    browser: Any, snippet: str, collector: CollectorProcess
) -> None:
    """An error response is no CORS error: the script can read its status, code and `Retry-After`."""
    page = browser.new_context().new_page()
    page.goto(snippet)
    ask = """async ([url, key, type]) => {
        try {
            const answer = await fetch(url + '/v1/batch', {method: 'POST', headers: {'Content-Type': type},
                body: JSON.stringify({writeKey: key, batch: [{event: 'asked'}]})});
            return [answer.status, await answer.json()];
        } catch (error) { return [0, String(error)]; }
    }"""
    status, body = page.evaluate(ask, [collector.url, KEY, "text/plain"])
    assert (status, body["accepted"]) == (200, 1)
    status, body = page.evaluate(ask, [collector.url, KEY, "application/json"])  # the browser asks first
    assert (status, body["accepted"]) == (200, 1)
    status, body = page.evaluate(ask, [collector.url, "no key", "text/plain"])
    assert (status, body["code"]) == (401, "bad_key")

    page.goto(snippet.replace("127.0.0.1", "localhost"))
    status, body = page.evaluate(ask, [collector.url, KEY, "text/plain"])
    assert (status, "Failed to fetch" in body) == (0, True)
    page.context.close()
    assert taken(collector) == 2


@pytest.fixture(scope="module")
def analytics() -> bytes:
    """Segment's SDK as one file for a page; installed once, and again when another version is pinned."""
    folder = Path(os.environ.get("DELTAWORKS_BROWSER_SDKS", PROJECT_ROOT / ".deltaworks" / "browser-sdks"))
    stamp = folder / "installed.json"
    if not stamp.is_file() or stamp.read_text() != PINS.read_text():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("no `npm` on the PATH, which installs the SDK")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(PINS, folder)
        command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"the SDK cannot be installed here: {done.stderr[-300:]}")
        stamp.write_text(PINS.read_text())
    return (folder / "node_modules" / "@segment" / "analytics-next" / "dist" / "umd" / "standalone.js").read_bytes()


def test_segments_sdk_sends_all_events_after_an_outage_of_the_collector(
    browser: Any, site: PageSite, collector: CollectorProcess, analytics: bytes
) -> None:
    options = {"integrations": {"Segment.io": {"protocol": "http"}}}  # the SDK defaults to https
    begun = f"window.analytics = Object.assign([], {{_writeKey: {KEY!r}, _cdn: {collector.url!r}, "
    site.page = f"<script>{begun}_loadOptions: {json.dumps(options)}}});</script><script src='/analytics.js'></script>"
    site.files["/analytics.js"] = analytics
    page = browser.new_context().new_page()
    trouble = list[str]()
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.goto(site.origin)
    sees(page, lambda: page.evaluate("typeof analytics.track === 'function'") or trouble, f"the SDK is there {trouble}")
    assert not trouble
    page.evaluate("for (let n = 0; n < 20; n++) analytics.track('played', {n})")
    sees(page, lambda: taken(collector) == 20, "all of them are taken")

    collector.kill()
    page.evaluate("analytics.identify('player 7', {level: 3}); analytics.track('away', {})")
    page.wait_for_timeout(500)
    collector.start()
    sees(page, lambda: taken(collector) == 2, "what waited is taken")
    page.context.close()
    collector.terminate()

    events = collector.spooled_events()
    played = [event["properties"]["n"] for event in events if event.get("event") == "played"]
    assert sorted(played) == list(range(20))
    assert {event["type"] for event in events} == {"track", "identify"}
    assert len({event["_collector"]["id"] for event in events}) == len(events) == 22
    assert {event["_collector"]["id_from"] for event in events} == {"client"}
