"""The standalone console: a one-time address, an HTTP-only cookie, and read-only access."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from deltaworks.console.standalone import SingleUser, UnavailableActions, build_standalone


def client(reader: SingleUser, host: str = "127.0.0.1:8990") -> TestClient:
    return TestClient(build_standalone(reader), base_url=f"http://{host}", follow_redirects=False)


def test_the_address_opens_the_console_once(project: Path) -> None:
    reader = SingleUser()
    key = reader.login_key
    first, second = client(reader), client(reader)
    opened = first.get(f"/open/{key}")

    assert opened.status_code == 303
    assert "HttpOnly" in opened.headers["set-cookie"]
    assert "SameSite=strict" in opened.headers["set-cookie"]
    assert first.get("/").status_code == 200
    assert second.get(f"/open/{key}").status_code == 403
    assert second.get("/").status_code == 401


@pytest.mark.parametrize("path", ["/", "/streams/games", "/?format=json", "/dag/games__stream"])
def test_without_the_cookie_nothing_is_shown(project: Path, path: str) -> None:
    stranger = client(SingleUser())

    assert stranger.get(path).status_code == 401
    assert stranger.get(path, cookies={"deltaworks_console": "forged"}).status_code == 401


def test_an_unknown_host_name_is_rejected(project: Path) -> None:
    reader = SingleUser()

    assert client(reader, "evil.example").get(f"/open/{reader.login_key}").status_code == 400
    assert reader.login_key is not None


def test_nothing_can_be_started(project: Path) -> None:
    reader = SingleUser()
    browser = client(reader)
    browser.get(f"/open/{reader.login_key}")

    assert UnavailableActions().unavailable_reason()
    assert {row["may_restart"] for row in browser.get("/?format=json").json()["view"]["streams"]} == {False}
    assert {route.methods == {"GET"} for route in browser.app.routes if hasattr(route, "methods")} == {True}  # type: ignore[attr-defined]


def test_a_standalone_form_shows_the_command_and_starts_nothing(project: Path) -> None:
    reader = SingleUser()
    browser = client(reader)
    browser.get(f"/open/{reader.login_key}")
    own = {"Origin": "http://127.0.0.1:8990"}

    page = browser.get("/actions/control/games?verb=restart")
    sent = browser.post("/actions/control/games", data={"_nonce": "n" * 20, "verb": "restart"}, headers=own)

    assert "deltaworks control games restart" in page.text
    assert "<form" not in page.text
    assert sent.status_code == 403
    assert browser.get("/actions/control/games/runs/r").status_code == 503
