"""Access, headers and error pages of every route."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from deltaworks.console.pages import table_read_pages
from deltaworks.console.pages.registry import PAGES
from deltaworks.console.rendering import assets
from deltaworks.console.table_reads import TableReadResult
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import TransientError
from deltaworks.errors.conditions import next_step_for
from tests.console_harness import ConsoleHarness, console_harness
from tests.unit.console.summaries_harness import put_tables, table

#: Status of each route: without login, with a forged login, for a viewer without access to games, a viewer, and ada.
ANSWERS = {
    "/": (303, 403, 200, 200, 200),
    "/streams/{pipeline}": (303, 403, 404, 200, 200),
    "/streams/{pipeline}/batches/{batch}": (303, 403, 404, 404, 404),
    "/dag/{dag_id}": (303, 403, 404, 200, 200),
    "/tables": (303, 403, 200, 200, 200),
    "/tables/{pipeline}/{table}": (303, 403, 404, 200, 200),
    "/quarantine": (303, 403, 200, 200, 200),
    "/quarantine/{pipeline}": (303, 403, 404, 200, 200),
    "/alerts": (303, 403, 200, 200, 200),
    "/nights": (303, 403, 200, 200, 200),
    "/nights/{pipeline}": (303, 403, 404, 200, 200),
    "/gold": (303, 403, 200, 200, 200),
    "/gold/{pipeline}": (303, 403, 404, 200, 200),
    "/dashboards": (303, 403, 200, 200, 200),
    # Games declares no dashboards.
    "/dashboards/{pipeline}/{name}": (303, 403, 404, 404, 404),
    "/widgets": (303, 403, 200, 200, 200),
    # Games declares no widgets.
    "/widgets/{pipeline}/{view}": (303, 403, 404, 404, 404),
    "/widgets/{pipeline}/{view}/events": (303, 403, 404, 404, 404),
    "/costs": (303, 403, 200, 200, 200),
    "/lineage": (303, 403, 200, 200, 200),
    # Games declares no mutations.
    "/mutations/{pipeline}": (303, 403, 404, 404, 404),
    "/mutations/{pipeline}/cascade": (303, 403, 404, 404, 404),
    "/tables/{pipeline}/{table}/history": (303, 403, 404, 200, 200),
    # Raw values: a viewer may not reprocess.
    "/quarantine/{pipeline}/samples": (303, 403, 404, 404, 200),
    "/erasures": (303, 403, 200, 200, 200),
    # Games has no personal data.
    "/erasures/{namespace}/certificates": (303, 403, 404, 404, 404),
    "/erasures/{namespace}/{request_id}/certificate": (303, 403, 404, 404, 404),
    "/assets/{digest}/{name}": (303, 403, 200, 200, 200),
    "/actions/{operation}/{subject}": (303, 403, 404, 200, 200),
    # Of runs that are not there.
    "/actions/{operation}/{subject}/runs/{run_id}": (303, 403, 404, 404, 404),
    "/actions/{operation}/{subject}/confirm/{run_id}": (303, 403, 404, 404, 404),
}


def address_of(route: str) -> str:
    asset = assets()["console.css"]
    values = {
        "pipeline": "games",
        "table": "events",
        "view": "popular",
        "batch": "812",
        "dag_id": "games__stream",
        "digest": asset.digest,
        "name": "console.css",
    }
    values |= {"operation": "control", "subject": "games", "run_id": "r"}
    values |= {"namespace": "players", "request_id": "e1"}
    return re.sub(r"\{(\w+)\}", lambda part: values[part[1]], route)


def test_every_route_is_in_the_access_table(harness: ConsoleHarness) -> None:
    routes = {route.path for route in harness.client.app.routes if isinstance(route, APIRoute)}  # type: ignore[attr-defined]

    assert routes == set(ANSWERS)


@pytest.mark.parametrize("route", ANSWERS)
def test_access_to_each_route(harness: ConsoleHarness, route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_read_pages, "read_tables", lambda *_, **__: TableReadResult())
    authenticator = (None, "mallory", "eve", "vic", "ada")
    put_tables(harness.objects, "games", table("events"))

    assert tuple(harness.get(address_of(route), by=name).status_code for name in authenticator) == ANSWERS[route]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_a_content_security_policy(harness: ConsoleHarness, page: object) -> None:
    answer = harness.get("/")
    policy = answer.headers["content-security-policy"]

    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_request_without_login_is_redirected_to_the_login(harness: ConsoleHarness) -> None:
    assert harness.get("/", by=None).headers["location"] == "/login?next=/"


def test_a_fragment_without_login_gets_401(harness: ConsoleHarness) -> None:
    assert harness.get("/?fragment=1", by=None).status_code == 401
    assert harness.get("/?format=json", by=None, accept="application/json").status_code == 401


def test_an_unchanged_page_gets_304(harness: ConsoleHarness) -> None:
    harness.write_heartbeat("games")
    harness.get("/")  # what was never read before is new
    first = harness.get("/?fragment=1")
    again = harness.get("/?fragment=1", if_none_match=first.headers["etag"])

    assert again.status_code == 304
    assert again.content == b""
    assert harness.get("/", if_none_match=first.headers["etag"]).status_code == 200
    assert harness.get("/?fragment=1", by="eve", if_none_match=first.headers["etag"]).status_code == 200


def test_a_fragment_is_the_polled_part_of_its_page(harness: ConsoleHarness) -> None:
    page, fragment = harness.get("/").text, harness.get("/?fragment=1").text

    assert "<html" in page
    assert "<html" not in fragment
    assert "<form" not in fragment
    assert "Other processes" in fragment


def test_a_view_is_available_as_json(harness: ConsoleHarness) -> None:
    answer = harness.get("/?format=json")

    assert answer.headers["content-type"] == "application/json"
    assert [row["name"] for row in json.loads(answer.text)["view"]["streams"]] == ["edits", "games"]


def test_links_include_the_path_prefix_of_the_console(project: Path) -> None:
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    outer = FastAPI(root_path="/air")
    outer.mount("/deltaworks", console_harness(project).client.app)
    html = TestClient(outer).get("/air/deltaworks/", headers={"X-Person": "ada", "Accept": "text/html"}).text
    local = re.findall(r'(?:href|src|action|hx-get)="(/[^"]*)"', html)

    assert [address for address in local if not address.startswith(("/air/deltaworks/", "/dags/"))] == []
    assert any(address.startswith("/air/deltaworks/assets/") for address in local)


def test_an_asset_of_another_release_is_not_sent(harness: ConsoleHarness) -> None:
    assert harness.get("/assets/0000/console.css").status_code == 404
    assert harness.get(address_of("/assets/{digest}/{name}")).headers["cache-control"].endswith("immutable")


class UnreachableStorage:
    """A storage that never answers."""

    def __getattr__(self, name: str) -> object:
        raise TransientError("STORAGE_UNREACHABLE", "could not read <b>", hint="")


def test_pages_answer_while_the_storage_does_not(project: Path) -> None:
    harness = console_harness(project, storage=UnreachableStorage)  # type: ignore[return-value, arg-type]
    answer = harness.get("/")

    assert answer.status_code == 200
    assert "The storage has not answered" in answer.text
    assert "could not read &lt;b&gt;" in answer.text
    assert "<code>CONTROL_UNREADABLE</code>" in answer.text
    assert next_step_for("CONTROL_UNREADABLE") in answer.text
    assert "open issues may be missing" in answer.text
    assert "No open issues" not in answer.text
    assert 'class="issues"' not in answer.text, "it is said once, and not of every stream"


def test_an_object_store_is_opened_once(project: Path) -> None:
    opened: list[ObjectStore] = []
    harness = console_harness(project)
    counted = console_harness(project, storage=lambda: opened.append(harness.objects) or harness.objects)  # type: ignore[func-returns-value]
    counted.get("/")
    counted.get("/")

    assert len(opened) == 1
