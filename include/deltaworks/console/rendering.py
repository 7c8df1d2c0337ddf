"""Renders Jinja2 templates with autoescape and strict undefined variables, and formats values in them.

Displayed data is always text. Only templates create markup, and a test checks that none disables escaping.
"""

from __future__ import annotations

import hashlib
import html
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from deltaworks.charts import compact
from deltaworks.console.actions import suggested_actions
from deltaworks.errors.conditions import catalog, next_step_for

_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
NO_VALUE = "\u2013"


def seconds_text(seconds: float | None) -> str:
    """Formats a duration with at most two digits and a unit: `0.4 s`, `41 s`, `41 min`, `6.5 h`, `6 d`."""
    if seconds is None:
        return NO_VALUE
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 ", " ")
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3_600:.1f} h".replace(".0 ", " ")
    return f"{seconds / 86_400:.0f} d"


def age_text(at: datetime | None, now: datetime) -> str:
    """Formats the time since or until an instant."""
    return NO_VALUE if at is None else seconds_text(round(abs((now - at).total_seconds())))


def instant_text(at: datetime | None) -> str:
    """Formats an instant in UTC, to the second."""
    return NO_VALUE if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def clock_text(at: datetime | None) -> str:
    """Formats the time of day of an instant, in UTC."""
    return NO_VALUE if at is None else at.astimezone(UTC).strftime("%H:%M:%S UTC")


def iso_instant(at: datetime) -> str:
    """Formats an instant for `<time datetime>`."""
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def bytes_text(number: float | None) -> str:
    """Formats bytes with a decimal unit: `12 kB`, `3.1 MB`."""
    if number is None:
        return NO_VALUE
    for unit in _BYTES:
        if abs(number) < 1_000 or unit == _BYTES[-1]:
            break
        number /= 1_000
    return f"{number:.0f} {unit}" if number >= 10 or unit == "B" else f"{number:.1f} {unit}"


def count_text(number: float | None) -> str:
    """Formats a count with separators; fractions below 10 with one decimal place."""
    if number is None:
        return NO_VALUE
    return f"{number:,.1f}" if number != int(number) and abs(number) < 10 else f"{number:,.0f}"


def share_text(share: float | None) -> str:
    """Formats a share as percent; a small share is never shown as 0."""
    if share is None:
        return NO_VALUE
    percent = 100 * share
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.1f} %"


_FOLDER = Path(__file__).parent
#: A symbol and style for each state, so that states do not depend on colour alone.
STATE_MARKS: Final[Mapping[str, tuple[str, str]]] = {
    "healthy": ("✓", "good"),
    "committed": ("✓", "good"),
    "complete": ("✓", "good"),
    "running": ("▶", "good"),
    "lagging": ("▲", "warn"),
    "starting": ("…", "quiet"),
    "stopping": ("…", "quiet"),
    "stopped": ("■", "quiet"),
    "paused": ("■", "quiet"),
    "held": ("▲", "warn"),
    "skipped": ("…", "quiet"),
    "upstream_failed": ("▲", "warn"),
    "unhealthy": ("✕", "bad"),
    "failed": ("✕", "bad"),
}
#: A placeholder for the console's address in macros, which cannot access the frame. It is random, so that no data
#: contains it.
_ROOT_PLACEHOLDER: Final = f"root-{secrets.token_hex(16)}"


_COMMAND: Final = re.compile(r"`(deltaworks [^`]*)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The frame of a page: address, person, navigation, and storage problems.

    The path of the console is `root`; `address` is the address of this page below it. While the storage does not
    answer, `stale_since` is set. The content is judged by the time `as_of`, which is earlier than `now` if data could
    not be read again.
    """

    title: str
    root: str
    address: str
    now: datetime
    person: str
    menu: tuple[tuple[str, str], ...]
    current: str = ""
    airflow: str | None = None
    actions_unavailable: str = ""
    docs: str = ""
    stale_since: datetime | None = None
    as_of: datetime | None = None
    problem: str = ""

    def href(self, *parts: str, **query: str | int | None) -> str:
        """Returns the address of a console page. Each part is any name, which is escaped, or a path that starts with
        `/`.
        """
        path = "".join(part if part.startswith("/") else "/" + quote(part, safe="") for part in parts)
        pairs = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items() if value is not None)
        return self.root + path + (f"?{pairs}" if pairs else "")

    def airflow_href(self, *parts: str) -> str:
        """Returns the address of an Airflow page, from the same parts as `href`."""
        return (self.airflow or "") + "".join("/" + quote(part, safe="") for part in parts)

    def runbook(self, code: str) -> str:
        """Returns the address of the docs for a cause, alert or condition; empty if the environment has no docs
        address.
        """
        page = runbook_path(code)
        return f"{self.docs.rstrip('/')}/{page}" if self.docs and page else ""


@cache
def templates() -> Environment:
    """Returns the template environment. Thread-safe."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        extensions=["jinja2.ext.do"],
    )
    environment.filters |= {
        "age": age_text,
        "duration": seconds_text,
        "instant": instant_text,
        "clock": clock_text,
        "iso": iso_instant,
        "bytes": bytes_text,
        "count": count_text,
        "share": share_text,
    }
    environment.globals |= {
        "sparkline_of": compact.sparkline,
        "line_of": compact.line,
        "bars_of": compact.bars,
        "state_mark": lambda state: STATE_MARKS.get(state, ("?", "quiet")),
        "format_value": format_value,
        "asset": asset_path,
        "is_web_url": is_web_url,
        "process_actions": suggested_actions.process_actions,
        "measure_actions": suggested_actions.measure_actions,
        "batch_actions": suggested_actions.batch_actions,
        "suggested_action_for": suggested_actions.suggest_action,
        "issue_actions": suggested_actions.issue_actions,
        "command_actions": suggested_actions.command_actions,
        "issue_title": issue_title,
        "grouped": grouped,
        "next_step_of": next_step_for,
        "split_step": split_step,
        "command_form_path": suggested_actions.command_form_path,
        "root_placeholder": _ROOT_PLACEHOLDER,
    }
    return environment


def render(name: str, frame: Frame, view: Any, *, fragment: bool = False) -> str:
    """Renders a view as HTML. A fragment is only the part of the page that the browser polls."""
    layout = "fragment.html" if fragment else "base.html"
    page = templates().get_template(f"{name}.html").render(frame=frame, view=view, layout=layout)
    return page.replace(_ROOT_PLACEHOLDER, html.escape(frame.root))


def format_value(value: float | None, unit: str) -> str:
    """Formats a value with the unit of its series."""
    text = {"seconds": seconds_text, "bytes": bytes_text, "share": share_text}
    return text.get(unit, count_text)(value)


def issue_title(cause: str, subject: str) -> str:
    """Returns the title of an issue in plain words: the subject, and the meaning of the cause."""
    entry = catalog().alerts.get(cause) or catalog().health_causes.get(cause) or catalog().conditions.get(cause)
    meaning = cause.lower().replace("_", " ") if entry is None else entry.meaning.replace("`", "")
    return f"{subject.removeprefix('stream ')}: {meaning}"


def grouped(rows: Iterable[Any], attribute: str) -> list[tuple[Any, list[Any]]]:
    """Groups rows by an attribute. Groups and rows keep their order."""
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(getattr(row, attribute), []).append(row)
    return list(groups.items())


def split_step(text: str) -> list[tuple[str, bool]]:
    """Splits a next step into parts, each with a flag for commands that can be copied."""
    return [(part, bool(index % 2)) for index, part in enumerate(_COMMAND.split(text)) if part]


def runbook_path(code: str) -> str:
    """Returns the docs page and heading of a cause, alert or condition; empty for an unknown code."""
    if code in catalog().alerts:
        return catalog().alerts[code].runbook
    condition = catalog().health_causes.get(code) or catalog().conditions.get(code)
    if condition is None:
        return ""
    if condition.alert is not None and condition.alert in catalog().alerts:
        return catalog().alerts[condition.alert].runbook
    return condition.runbook or "reference/conditions.md"


def is_web_url(text: str | None) -> bool:
    """Returns whether untrusted text may become a link: http and https only, so that no link runs a script."""
    if not text:
        return False
    try:
        return urlsplit(text).scheme in ("http", "https")
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file of the pages."""

    data: bytes
    media_type: str
    digest: str


_MEDIA_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@cache
def assets() -> Mapping[str, Asset]:
    """Returns the static files by name: the console's own, and those that the build unpacks into `static`."""
    files = sorted(path for folder in ("assets", "static") for path in (_FOLDER / folder).glob("*.*"))
    return {
        path.name: Asset(data, _MEDIA_TYPES[path.suffix], hashlib.sha256(data).hexdigest()[:16])
        for path in files
        if path.suffix in _MEDIA_TYPES
        for data in [path.read_bytes()]
    }


def asset_path(name: str) -> str:
    """Returns the path of a static file, which changes with its content; empty if the file is missing."""
    asset = assets().get(name)
    return "" if asset is None else f"/assets/{asset.digest}/{name}"
