"""Protections of the console: each test fails if its protection is removed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from fastapi import Response

from deltaworks.console.application import build_console, file_name
from deltaworks.console.cached_objects import CachedObjects, CatalogCache
from deltaworks.console.console import Console
from deltaworks.console.rendering import assets
from deltaworks.control.objects import open_objects
from tests.console_harness import ConsoleHarness, FakeActions, FakeAuthenticator, console_harness, person

CONTROL, RELAY = "/actions/control/games", "/actions/control_relay/landing"
OWN = {"origin": "http://testserver", "accept": "text/html"}


def send(harness: ConsoleHarness, path: str, by: str) -> Any:
    values = {"_nonce": "n" * 20, "verb": "stop"}
    return harness.client.post(path, data=values, headers={**OWN, "X-Person": by}, follow_redirects=False)


def test_no_page_links_to_other_sites(harness: ConsoleHarness) -> None:
    assert harness.get("/").headers["referrer-policy"] == "same-origin"


@pytest.mark.parametrize("path", [CONTROL, RELAY])
def test_a_person_who_may_not_start_an_action_sees_no_form(with_forms: ConsoleHarness, path: str) -> None:
    assert 'name="verb"' in with_forms.get(path).text

    shown = with_forms.get(f"{path}?format=json", by="vic").json()["view"]

    assert (shown["may_start"], shown["fields"]) == (False, [])


@pytest.mark.parametrize("path", [CONTROL, RELAY])
def test_an_invisible_subject_has_no_action(with_forms: ConsoleHarness, path: str) -> None:
    # They may start everything, and see nothing but another pipeline.
    with_forms.people["max"] = person("max", reads=("edits__stream",))

    assert with_forms.get(path, by="max").status_code == 404
    assert send(with_forms, path, "max").status_code == 404
    assert with_forms.actions.started == []
    assert send(with_forms, path, "ada").status_code == 303


@pytest.mark.parametrize("subject", ["..%2Fgames", "%2F%2Fevil.example", "games%2F..%2F..", "games%0d%0aX-A:%20b"])
def test_an_action_only_leads_to_the_run_of_its_operation(with_forms: ConsoleHarness, subject: str) -> None:
    answer = send(with_forms, f"/actions/control/{subject}", "ada")

    assert answer.status_code in (404, 405)
    assert "location" not in answer.headers
    assert with_forms.actions.started == []
    assert send(with_forms, CONTROL, "ada").headers["location"].startswith(f"{CONTROL}/runs/console__")


def test_two_people_never_share_an_etag(harness: ConsoleHarness) -> None:
    harness.people["bob"] = person("bob")
    tags = {by: harness.get("/costs", by=by).headers["etag"] for by in ("ada", "bob")}

    assert tags["ada"] != tags["bob"]
    assert harness.get("/costs", by="bob", if_none_match=tags["ada"]).status_code == 200
    assert harness.get("/costs", if_none_match=tags["ada"]).status_code == 304


@pytest.mark.parametrize(
    "name", ["..%2F..%2Fconsole.py", "%2e%2e/console.py", "..%2Ftemplates%2Fbase.html", "none.css"]
)
def test_only_page_assets_are_served(harness: ConsoleHarness, name: str) -> None:
    digest = assets()["console.css"].digest

    assert harness.get(f"/assets/{digest}/{name}").status_code == 404
    assert harness.get(f"/assets/{digest}/console.css").status_code == 200


@pytest.mark.parametrize(
    ("request_id", "name"),
    [
        ('e1"; filename="evil.exe', "erasure-players-e1-filename-evil.exe.json"),
        ("e1\r\nSet-Cookie: a=b", "erasure-players-e1-Set-Cookie-a-b.json"),
        ("../../etc/passwd", "erasure-players-..-..-etc-passwd.json"),
    ],
)
def test_a_file_name_cannot_inject_a_header_or_a_path(request_id: str, name: str) -> None:
    assert file_name("players", request_id) == name


def test_only_certificates_of_listed_requests_are_served(project: Path) -> None:
    declared = project / "include" / "pipelines" / "games" / "pipeline.yaml"
    declared.write_text(
        declared.read_text() + "privacy: {namespace: players, fields: [{path: secret, action: drop}]}\n"
    )
    harness, secret = console_harness(project), "control/privacy/players/token_key"
    harness.objects.put(f"{secret}.json", b"secret")

    for depth in range(1, 5):
        climbed = "%2F".join([".."] * depth + ["token_key"])
        assert harness.get(f"/erasures/players/{climbed}/certificate").status_code == 404


def test_pages_use_at_most_four_threads_and_none_of_the_host(project: Path) -> None:
    """A host needs its threads for heartbeats of tasks: forty-five hanging pages use none of them."""
    inside, most, release = [], [], threading.Event()
    lock = threading.Lock()

    class Slow(Console):
        def render(self, *_: Any) -> Response:
            with lock:
                inside.append(1)
                most.append(len(inside))
            release.wait(30)
            with lock:
                inside.pop()
            return Response(b"made")

    async def storm() -> int:
        objects = open_objects(CatalogCache().current().environment.lake)
        console = Slow(
            authenticator=FakeAuthenticator({"ada": person()}),
            actions=FakeActions(),
            records=CachedObjects(lambda: objects),
            catalog=CatalogCache(),
        )
        transport = httpx2.ASGITransport(app=build_console(console))
        borrowed = 0
        async with (
            httpx2.AsyncClient(transport=transport, base_url="http://t", headers={"X-Person": "ada"}) as client,
            anyio.create_task_group() as group,
        ):
            for _ in range(45):
                group.start_soon(client.get, "/")
            with anyio.fail_after(30):
                while len(most) < 4:
                    await anyio.sleep(0.01)
            borrowed = int(anyio.to_thread.current_default_thread_limiter().borrowed_tokens)
            release.set()
        return borrowed

    assert anyio.run(storm) == 0
    assert (len(most), max(most)) == (45, 4)


def test_requests_do_not_wait_for_a_failing_storage(project: Path) -> None:
    class Broken:
        def get(self, key: str) -> None:
            raise OSError("no")

    cache = CachedObjects(Broken, wait_seconds=30)  # type: ignore[arg-type, return-value]
    (entry,) = cache.start_reads(["a"])
    assert entry.pending_read is not None
    entry.pending_read.result(timeout=30)

    assert cache.seconds_to_wait(entry, float("inf")) == 0.0


def test_lineage_hides_pipelines_the_person_may_not_see(harness: ConsoleHarness) -> None:
    assert "games" in harness.get("/lineage").text
    assert "games." not in harness.get("/lineage", by="eve").text
    assert harness.get("/lineage?of=games.events", by="eve").text.count("games.events") <= 1, (
        "what they typed themselves"
    )


def test_a_real_run_cannot_be_confirmed_as_a_count(with_forms: ConsoleHarness) -> None:
    vacuum = "/actions/vacuum_tables/games"
    headers = {**OWN, "X-Person": "ada"}
    counted = with_forms.client.post(vacuum, data={"_nonce": "n" * 20}, headers=headers, follow_redirects=False)
    first = {"_nonce": "o" * 20, "_count_run": counted.headers["location"].rpartition("/")[2]}
    done = with_forms.client.post(vacuum, data=first, headers=headers, follow_redirects=False)
    second = {"_nonce": "p" * 20, "_count_run": done.headers["location"].rpartition("/")[2]}

    again = with_forms.client.post(vacuum, data=second, headers=headers, follow_redirects=False)

    assert (done.status_code, again.status_code) == (303, 422)
    assert "ACTION_NOT_COUNTED" in again.text
    assert [conf["dry_run"] for _, _, conf in with_forms.actions.started] == [True, False]
