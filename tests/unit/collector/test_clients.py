"""The clients of docs/how-to/collect-over-http.md run as documented; they neither lose nor duplicate an event."""

from __future__ import annotations

import contextlib
import re
import urllib.error
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from deltaworks.specs.catalog import PROJECT_ROOT
from tests.browser_page import launch_chromium, serve_site
from tests.unit.collector.http_harness import KEY, MemoryWriter, app_of, collector_spec, listening
from tests.waiting import eventually

PAGE = (PROJECT_ROOT / "docs" / "how-to/collect-over-http.md").read_text()


def client(name: str) -> str:
    """The code of a client as the page has it."""
    (code,) = re.findall(rf"<!-- client: {name} -->\n```\w+\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return str(code)


def test_the_python_client_retries_until_the_collector_accepts() -> None:
    writer, waits = MemoryWriter(), list[float]()
    writer.problem = "spool_full"

    def wait(seconds: float) -> None:
        waits.append(seconds)
        writer.problem = None if len(waits) >= 3 else writer.problem

    names: dict[str, Any] = {}
    exec(client("python"), names)
    names["time"] = SimpleNamespace(sleep=wait)
    send = names["send"]
    with listening(app_of(collector_spec(), writer)) as server:
        address = server.address
        answer = send(address, KEY, [{"type": "track", "event": "a"}, {"type": "track", "event": "b"}])
        assert answer["accepted"] == 2
        assert [event["event"] for event in writer.events] == ["a", "b"]
        assert len(waits) == 3
        assert min(waits) >= 1, "Retry-After counts"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            send(address, "no-key", [{}])
    with pytest.raises(TimeoutError):
        send(address, KEY, [{}], tries=2)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launch_chromium() as browser:
        yield browser


@pytest.mark.integration
def test_the_page_keeps_events_through_a_lost_network_a_rate_limit_and_its_unload(browser: Any) -> None:
    writer = MemoryWriter()
    with serve_site() as site, contextlib.ExitStack() as open_parts:
        spec = collector_spec(origins=[site.origin], rate={"events_per_second": 1, "burst": 3})
        address = open_parts.enter_context(listening(app_of(spec, writer))).address
        script = client("browser").replace("https://events.example.org", address)
        site.page = f"<script>{script.replace('the key of the source', KEY).replace('5000', '200')}</script>"
        context = browser.new_context()
        page = context.new_page()
        statuses = list[int]()
        page.on("response", lambda answer: statuses.append(answer.status))

        def names() -> list[str]:
            return sorted(event["event"] for event in writer.events)

        def arrived(wanted: list[str]) -> None:
            # The browser's own events are handled while it is asked something.
            eventually(lambda: (page.wait_for_timeout(50), names() == wanted)[1], f"{wanted} arrive")

        page.goto(site.origin)
        page.evaluate("track('first', {n: 1})")
        arrived(["first"])

        context.set_offline(True)
        page.evaluate("track('offline', {}); flush()")
        page.wait_for_timeout(600)
        assert names() == ["first"]
        context.set_offline(False)
        arrived(["first", "offline"])

        page.evaluate("for (let n = 0; n < 4; n++) track('burst' + n, {})")
        arrived(["burst0", "burst1", "burst2", "burst3", "first", "offline"])
        page.evaluate("track('throttled', {})")
        arrived(["burst0", "burst1", "burst2", "burst3", "first", "offline", "throttled"])
        assert 429 in statuses, "the rate was never met"

        page.wait_for_timeout(3_000)
        before = names()
        page.evaluate("busy = true; track('leaving', {})")  # the timer would send it, and it is the end that shall
        page.goto("about:blank")
        arrived(sorted([*before, "leaving"]))
        assert len({event["messageId"] for event in writer.events}) == len(writer.events)
        context.close()
