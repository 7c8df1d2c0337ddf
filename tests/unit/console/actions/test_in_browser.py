"""Actions in a browser: by keyboard, confirmed by a dialog with the counts, and sent once.

Skipped without `chromium` on the PATH.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.console_harness import FakeActions
from tests.screenshots import CHROMIUM, collect_console_errors, serve_console

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.integration
CONTROL, VACUUM = "/actions/control/games", "/actions/vacuum_tables/games"


@pytest.fixture(scope="module")
def actions() -> FakeActions:
    return FakeActions()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, actions: FakeActions) -> Iterator[str]:
    if CHROMIUM is None:
        pytest.skip("no `chromium` on the PATH, the browser that opens the forms")
    with serve_console(tmp_path_factory.mktemp("console") / "project", actions) as address:
        yield address


@pytest.fixture(scope="module")
def browser(base: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(browser: Any, actions: FakeActions) -> Iterator[Page]:
    """A page whose errors fail the test."""
    actions.started.clear()
    actions.results.clear()
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    complaints: list[str] = []
    opened = context.new_page()
    opened.on("console", functools.partial(collect_console_errors, complaints))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened
    context.close()
    assert complaints == []


def tab_to(page: Page, condition: str) -> None:
    """Moves the focus by the Tab key until a JavaScript condition on the focused element holds."""
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate(f"(focused => {condition})(document.activeElement)"):
            return
    raise AssertionError(f"the focus reaches no element with {condition}")


def test_a_stream_is_restarted_by_keyboard_alone(page: Page, base: str, actions: FakeActions) -> None:
    from playwright.sync_api import expect

    page.goto(f"{base}/")
    link = page.get_by_role("link", name="restart", exact=True).first
    link.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="restart games")).to_be_visible()
    page.get_by_label("Reason").focus()
    page.keyboard.type("a new key")
    tab_to(page, "focused.textContent === 'restart games'")
    page.keyboard.press("Enter")

    expect(page).to_have_url(re.compile("/runs/console__"))
    expect(page.locator("#live")).to_contain_text("complete")
    ((dag_id, _, conf),) = actions.started
    assert (dag_id, conf["action"], conf["reason"]) == ("games__control", "restart", "a new key")


def test_a_dialog_shows_what_was_chosen_and_starts_it_by_keyboard(page: Page, base: str, actions: FakeActions) -> None:
    from playwright.sync_api import expect

    page.goto(f"{base}{CONTROL}")
    page.get_by_label("Verb").select_option("restart")
    page.get_by_label("Reason").focus()
    page.keyboard.type("a new key")
    tab_to(page, "focused.dataset.opens === 'sure'")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    expect(dialog).to_contain_text("a new key")
    expect(dialog).to_contain_text("restart")
    page.keyboard.press("Enter")

    expect(page).to_have_url(re.compile("/runs/console__"))
    ((_, _, conf),) = actions.started
    assert (conf["action"], conf["reason"]) == ("restart", "a new key")


def test_a_cancelled_dialog_starts_nothing(page: Page, base: str, actions: FakeActions) -> None:
    from playwright.sync_api import expect

    page.goto(f"{base}{CONTROL}")
    page.get_by_role("button", name="control …").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()

    expect(page.get_by_role("dialog")).to_have_count(0)
    assert actions.started == []


@pytest.mark.parametrize("address", [CONTROL, f"{CONTROL}?verb=stop"], ids=["dialog", "verb"])
def test_a_double_click_is_one_run(page: Page, base: str, actions: FakeActions, address: str) -> None:
    page.goto(f"{base}{address}")
    if address == CONTROL:
        page.get_by_role("button", name="control …").click()
    page.get_by_role("button", name="Start" if address == CONTROL else "stop games").dblclick(no_wait_after=True)
    page.wait_for_url("**/runs/console__*")

    assert len(actions.started) == 1


def test_counts_are_shown_before_the_deletion(page: Page, base: str, actions: FakeActions) -> None:
    from playwright.sync_api import expect

    actions.results[:] = [{"table": "events", "files": 41_000}, {"table": "purchase", "files": 200}]
    page.goto(f"{base}{VACUUM}")
    page.get_by_role("button", name="Count first").click()
    page.get_by_role("link", name="Continue with the counted action …").click()
    page.get_by_role("button", name="vacuum now …").click()
    expect(page.get_by_role("dialog")).to_contain_text("41,200")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/runs/console__*")

    assert [conf["dry_run"] for _, _, conf in actions.started] == [True, False]


@pytest.mark.parametrize("address", ["/", CONTROL, "/actions/restore/games", "/actions/reprocess/games"])
def test_nothing_is_wider_than_a_narrow_screen(page: Page, base: str, address: str) -> None:
    page.set_viewport_size({"width": 320, "height": 700})
    page.goto(f"{base}{address}")

    assert page.evaluate("document.documentElement.scrollWidth") <= 320


@pytest.mark.parametrize("verb", ["", "stop"], ids=["dialog", "verb"])
def test_a_form_works_without_scripts(browser: Any, base: str, actions: FakeActions, verb: str) -> None:
    actions.started.clear()
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{base}{CONTROL}?verb={verb}")
    if not verb:
        page.get_by_label("Verb").select_option("stop")
    page.get_by_role("button", name=f"{verb or 'control'} games", exact=True).click()
    page.wait_for_url("**/runs/console__*")
    context.close()

    assert [conf["action"] for _, _, conf in actions.started] == ["stop"]


def test_form_input_survives_a_poll(page: Page, base: str) -> None:
    from playwright.sync_api import expect

    page.goto(f"{base}{CONTROL}?verb=stop")
    page.get_by_label("Reason").fill("half a wor")
    page.evaluate("document.getElementById('live').innerHTML = ''")

    expect(page.get_by_label("Reason")).to_have_value("half a wor")


@pytest.fixture(autouse=True)
def local_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DELTAWORKS_ENVIRONMENT", "local")
