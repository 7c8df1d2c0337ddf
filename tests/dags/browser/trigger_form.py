"""Airflow's Trigger form in a browser, as a person fills it in.

What Airflow 3.3 makes of a param's JSON schema, as `test_trigger_forms.py` holds it:

- A param is required where its schema has a `type` other than a list with "null". While a required param is null or
  an empty text, the form cannot be sent. An empty list, 0 and false can be.
- A field that is cleared submits null, whatever its kind. So what may stay empty is declared as
  `Param(None, type=["null", ...])`; the default "" of a text makes a form that cannot be sent.
- The first type that is not "null" chooses the field. A schema without a type, such as the `anyOf` of an optional
  integer in pydantic's schemas, makes a field of text whatever it holds.
- An `enum` beside a text or number makes a choice, and has to list None where None is allowed; `values_display` names
  it under the key "null". The choices of a list are its `examples`; its `items` with an `enum` are what the server
  checks.
- The browser checks nothing else. The server checks the whole schema when the run is created.
- Only the section of params without a `section` is open at first, and one at a time.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2
import hypothesis.strategies as st
from hypothesis import find

from tests.dags.browser.airflow_site import AirflowSite

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

CHROMIUM = shutil.which("chromium")
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_PATIENCE_MILLISECONDS = 60_000
_ASCII = st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs"))


@contextmanager
def logged_in(site: AirflowSite) -> Iterator[Page]:
    """Opens a browser page with a logged-in user."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        page = browser.new_page(viewport={"width": 1200, "height": 1600}, timezone_id="UTC")
        page.set_default_timeout(_PATIENCE_MILLISECONDS)
        page.goto(site.url)
        page.fill("input[name=username]", site.user)
        page.fill("input[name=password]", site.password)
        page.click("button[type=submit]")
        page.get_by_role("link", name="Dags").first.wait_for()
        yield page
        browser.close()


class AirflowRest:
    """Reads DAG params and created runs from Airflow's REST API."""

    def __init__(self, site: AirflowSite) -> None:
        token = httpx2.post(
            f"{site.url}/auth/token", json={"username": site.user, "password": site.password}, timeout=60
        )
        self._headers = {"Authorization": f"Bearer {token.raise_for_status().json()['access_token']}"}
        self._url = f"{site.url}/api/v2"

    def _get(self, path: str) -> Any:
        return httpx2.get(self._url + path, headers=self._headers, timeout=60).raise_for_status().json()

    def dag_ids(self) -> list[str]:
        """Returns all DAG ids, sorted."""
        return sorted(dag["dag_id"] for dag in self._get("/dags?limit=100")["dags"])

    def params(self, dag_id: str) -> dict[str, Any]:
        """Returns a DAG's params with default `value` and `schema`."""
        return dict(self._get(f"/dags/{dag_id}/details")["params"] or {})

    def conf(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Returns the conf of a run."""
        return dict(self._get(f"/dags/{dag_id}/dagRuns/{run_id}")["conf"])


def required(schema: Mapping[str, Any]) -> bool:
    """Returns whether Airflow's form requires a value."""
    kind = schema.get("type")
    return bool(kind) and "null" not in (kind if isinstance(kind, list) else [kind])


@dataclass(frozen=True, slots=True)
class TriggerForm:
    """The open Trigger form of a DAG."""

    page: Page
    url: str
    dag_id: str
    params: Mapping[str, Any]

    @classmethod
    def open(cls, page: Page, site: AirflowSite, dag_id: str, params: Mapping[str, Any]) -> TriggerForm:
        page.goto(f"{site.url}/dags/{dag_id}")
        page.get_by_test_id("trigger-dag-button").first.click()
        form = cls(page, site.url, dag_id, params)
        # A form is complete and validated once all sections of its params are present.
        for name in form._sections():
            form._section(name).wait_for()
        return form

    def _sections(self) -> set[str]:
        return {param["schema"].get("section") or "Run Parameters" for param in self.params.values()}

    def _section(self, name: str) -> Locator:
        return self.page.get_by_test_id("config-form").locator("button[data-part=item-trigger]").filter(has_text=name)

    @property
    def can_be_sent(self) -> bool:
        """Returns whether the Trigger button is enabled."""
        return self.page.get_by_test_id("trigger-dag-submit").is_enabled()

    def fill(self, name: str, value: Any) -> None:
        """Fills one field with the value; None clears it."""
        schema = self.params[name]["schema"]
        section = self._section(schema.get("section") or "Run Parameters")
        if section.get_attribute("aria-expanded") == "false":
            section.click()
        field = self.page.locator(f"[name=element_{name}]")
        container = self.page.locator(f"#element_{name}")
        if schema.get("format") == "date-time":
            self._fill_moment(name, value)
        elif isinstance(value, bool):
            self._switch(name, value)
        elif "enum" in schema or ("examples" in schema and isinstance(value, list)):
            self._choose(container, schema, value)
        else:
            field.fill(_typed(value))
            field.blur()

    def _switch(self, name: str, value: bool) -> None:
        box = self.page.locator(f"[name=element_{name}]")
        if box.is_checked() != value:
            self.page.locator(f'[id="switch:element_{name}"]').click()

    def _choose(self, container: Locator, schema: Mapping[str, Any], value: Any) -> None:
        labels = schema.get("values_display") or {}
        for choice in value if isinstance(value, list) else [value]:
            key = "null" if choice is None else str(choice)
            container.get_by_role("combobox").click()
            container.get_by_role("option", name=labels.get(key, key), exact=True).click()

    def _fill_moment(self, name: str, value: str) -> None:
        title = self.page.locator("label", has_text=self._title(name))
        self.page.locator("[role=group]").filter(has=title).get_by_test_id("datetime-input").click()
        date, _, time = value.partition("T")
        self.page.get_by_placeholder("YYYY/MM/DD").fill(date.replace("-", "/"))
        self.page.get_by_placeholder("HH:mm").fill(time[:5])
        title.click()

    def _title(self, name: str) -> str:
        return str(self.params[name]["schema"].get("title") or name)

    def send(self) -> str:
        """Presses Trigger; returns the run's id.

        Raises:
            AssertionError: Airflow refused it; contains the response.
        """
        with self.page.expect_response(lambda response: _creates_run(response.request)) as sent:
            self.page.get_by_test_id("trigger-dag-submit").click()
        answer = sent.value
        assert answer.ok, answer.text()
        return str(answer.json()["dag_run_id"])


def _creates_run(request: Any) -> bool:
    return bool(request.method == "POST" and request.url.endswith("/dagRuns"))


def _typed(value: Any) -> str:
    """Returns what a person types for a value."""
    if value is None:
        return ""
    return "\n".join(value) if isinstance(value, list) else str(value)


def value_for(schema: Mapping[str, Any], default: Any) -> Any:
    """Returns a valid value of a field that differs from its default.

    Raises:
        NotImplementedError: a kind of field that no form of this project has.
    """
    kinds = schema.get("type", "string")
    kind = next(name for name in ([kinds] if isinstance(kinds, str) else kinds) if name != "null")
    if kind == "boolean":
        return not default
    if kind == "array":
        return list(schema["examples"])[-2:] if "examples" in schema else ["first/*", "second/2026"]
    if "enum" in schema:
        return next(choice for choice in reversed(schema["enum"]) if choice not in (default, None, ""))
    if kind in ("integer", "number"):
        return min(schema.get("minimum", 0) + 7, schema.get("maximum", 10**6))
    if kind == "string":
        return _text_for(schema)
    raise NotImplementedError(f"a field of {schema}")


def _text_for(schema: Mapping[str, Any]) -> str:
    formats = {"date-time": "2026-01-31T12:30:00.000Z", "date": "2026-01-31", "time": "12:30:00"}
    if "format" in schema:
        return formats[schema["format"]]
    if "pattern" not in schema:
        return "Some text, such as 2026-01-31"
    matching = st.from_regex(schema["pattern"].removesuffix("$") + r"\Z", alphabet=_ASCII)
    return find(matching, lambda text: len(text.strip()) > 0)
