"""Client of the console in a real Airflow that follows links and submits forms like a browser."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

import httpx2

from deltaworks.operations.base import APPROVE_TASK
from deltaworks.operations.registry import get_operation
from tests.integration.airflow_harness import wait
from tests.integration.airflow_people import People
from tests.waiting import await_page

RUN_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A condition on the overview, with the address of its action."""

    cause: str
    subject: str
    detail: str
    next_step: str
    act: str


class _Form(HTMLParser):
    """The values a browser submits for an unchanged form of an action."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, list[str]] = {}
        self._inside = False
        self._select = self._area = ""
        self._first: str | None = None
        self._option: tuple[str | None, bool] | None = None

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        has = dict(attributes)
        name = has.get("name") or ""
        if tag == "form":
            self._inside = has.get("method") == "post"
        elif not self._inside:
            return
        elif tag == "input" and name and (has.get("type") != "checkbox" or "checked" in has):
            self.values.setdefault(name, []).append(has.get("value") or "on" * (has.get("type") == "checkbox"))
        elif tag == "select":
            self._select, self._first = name, "" if "multiple" in has else None
        elif tag == "textarea":
            self._area = name
            self.values.setdefault(name, [])
        elif tag == "option":
            self._option = has.get("value"), "selected" in has

    def handle_data(self, data: str) -> None:
        if self._area:
            self.values[self._area].append(data)
        elif self._option is not None:
            value = data if self._option[0] is None else self._option[0]
            if self._option[1]:
                self.values.setdefault(self._select, []).append(value)
            if self._first is None:
                self._first = value
            self._option = None

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._inside = False
        elif tag == "textarea":
            self._area = ""
        elif tag == "select":
            if self._select not in self.values and self._first:
                self.values[self._select] = [self._first]
            self._select = ""


class Console:
    """The console as one person sees it."""

    def __init__(self, people: People) -> None:
        login = people.login
        answer = httpx2.post(f"{login.url}/auth/token", json={"username": login.username, "password": login.password})
        self.person = login.username
        self._people = people
        self._client = httpx2.Client(
            base_url=f"{login.url}/deltaworks",
            headers={"Accept": "text/html", "Authorization": f"Bearer {answer.json()['access_token']}"},
            timeout=60,
        )
        self._origin = login.url

    def close(self) -> None:
        """Closes its connections."""
        self._client.close()

    def page(self, path: str) -> str:
        """Returns a page's HTML."""
        return self._get(path).text

    def view(self, path: str) -> Any:
        """Returns a page's data."""
        return self._get(path, {"format": "json"} if "?" not in path else None).json()["view"]

    def _get(self, path: str, params: dict[str, str] | None = None) -> httpx2.Response:
        """Returns a page that was read."""
        answer: httpx2.Response = await_page(lambda: self._client.get(path, params=params))
        assert answer.status_code == 200, answer.text
        return answer

    def troubles(self) -> list[Shown]:
        """Returns the open issues of the overview."""
        cards = self.page("/").split('<details class="issue ')[1:]
        return [_shown(card.partition("</details>")[0]) for card in cards]

    def await_trouble(self, *causes: str, subject: str, seconds: float = 240.0) -> Shown:
        """Waits until the overview shows a condition with one of these causes, or any, on a subject."""
        shown: list[Shown] = []

        def seen() -> bool:
            shown[:] = [
                one for one in self.troubles() if one.subject == subject and (not causes or one.cause in causes)
            ]
            return bool(shown)

        wait(seen, f"{causes} of {subject} is not shown", seconds)
        assert len(shown[0].next_step) > 6, shown
        return shown[0]

    def await_end(self, trouble: Shown, *, seconds: float = 240.0) -> None:
        """Waits until the overview no longer shows a condition."""
        gone = trouble.cause, trouble.subject
        wait(
            lambda: gone not in [(one.cause, one.subject) for one in self.troubles()],
            f"{trouble} is still shown",
            seconds,
        )

    def press(self, act: str, **values: str) -> str:
        """Opens a form by its address, submits it with these values changed, and waits for its run; returns the run's
        id. After a dry run it follows the link on the run's page to execute the action.
        """
        run_id = self.send(act, act, values)
        confirm = self._run(act, run_id)["confirm_path"]
        return self.send(confirm, act, {}) if confirm else run_id

    def send(self, page: str, act: str, values: dict[str, str]) -> str:
        """Submits a page's form and waits until its run has succeeded; approves the run if asked."""
        form = _Form()
        form.feed(self.page(page))
        assert "_nonce" in form.values, "no form is shown"
        path = act.partition("?")[0]
        data = form.values | {name: [value] for name, value in values.items()}
        answer = self._client.post(path, data=data, headers={"Origin": self._origin})
        assert answer.status_code == 303, answer.text
        run_id = answer.headers["location"].rpartition("/")[2]
        _, _, name, subject = path.split("/")
        dag_id = get_operation(name).dag_id(subject)

        def ended() -> bool:
            status = self._run(path, run_id)["status"]
            if status["approval_address"]:
                self._people.settle(dag_id, run_id, APPROVE_TASK, "Approve")
            return status["state"] in ("success", "failed")

        wait(ended, f"{run_id} of {dag_id} does not end", RUN_SECONDS)
        assert self._run(path, run_id)["status"]["state"] == "success", self._people.task_instances(dag_id, run_id)
        return run_id

    def _run(self, act: str, run_id: str) -> Any:
        return self.view(f"{act.partition('?')[0]}/runs/{run_id}")


def _shown(item: str) -> Shown:
    def text(markup: str) -> str:
        return html.unescape(re.sub(r"<[^>]*>", "", markup)).strip()

    # Commands have markup for copying; in plain text they are in backticks.
    item = re.sub(r'<code class="command"[^>]*>([^<]*)</code>', r"`\1`", item)
    key = re.search(r'data-key="(\w+) ([^"]*)"', item)
    assert key is not None, item
    detail, _, step = item.partition("</summary>")[2].partition("<strong>Next:</strong>")
    act = re.search(r'class="actions"><a href="([^"]*)"', item)
    path = "" if act is None else html.unescape(act[1]).removeprefix("/deltaworks")
    return Shown(
        cause=key[1],
        subject=html.unescape(key[2]),
        detail=text(detail),
        next_step=text(step.partition("</p>")[0]),
        act=path,
    )


@contextmanager
def console_of(people: People) -> Iterator[Console]:
    """Opens a person's console inside the block."""
    console = Console(people)
    try:
        yield console
    finally:
        console.close()
