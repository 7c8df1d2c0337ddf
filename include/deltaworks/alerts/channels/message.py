"""A notification as people read it on a phone: a title in plain words, a short text, the next step, and links."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from deltaworks.alerts.notification import Notification
from deltaworks.alerts.silences import subject_words
from deltaworks.control.clock import parse_iso
from deltaworks.errors.conditions import catalog, next_step_for

MAX_TITLE_LENGTH: Final = 120
MAX_TEXT_LENGTH: Final = 600
#: Limit of PagerDuty's deduplication keys.
_MAX_KEY_LENGTH: Final = 255
RULE_FIRING: Final = "RULE_FIRING"
#: How urgent a message looks. `resolved` is the end of an alert.
Tone = Literal["critical", "warning", "info", "resolved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageContext:
    """What a message says in addition to its notification.

    Args:
        environment: name of the environment; empty if unknown.
        docs_url: base URL of the published docs; without it messages have no link to a runbook.
        console_url: base URL of the console.
        owners: owner of each pipeline, relay, collector and remediation, by name.
    """

    environment: str = ""
    docs_url: str = ""
    console_url: str = ""
    owners: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link of a message."""

    text: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A notification in words. All texts are plain text without markup.

    - `key`: the same from the beginning of an alert to its end, and unique among environments.
    - `footer`: environment, cause, subject, and since when.
    - `owner`: empty if unknown.
    """

    title: str
    text: str
    next_step: str
    footer: str
    tone: Tone
    key: str
    links: tuple[Link, ...]
    owner: str


def message_of(notification: Notification, context: MessageContext) -> Message:
    """Builds the message of a notification."""
    is_resolved = notification.kind == "resolved"
    next_step = "" if is_resolved else _next_step(notification)
    runbook, open_alerts = runbook_url(notification, context), alerts_url(context)
    links = [Link(text="Runbook", url=runbook)] if runbook and not is_resolved else []
    if open_alerts:
        links.append(Link(text="Open alerts", url=open_alerts))
    parts = (context.environment, notification.cause, notification.subject, f"since {_instant(notification.since)}")
    return Message(
        title=_title(notification),
        text=_text(notification, next_step),
        next_step=_shorten(next_step, MAX_TEXT_LENGTH),
        footer=" · ".join(part for part in parts if part),
        tone="resolved" if is_resolved else notification.severity,
        key=alert_key(notification, context.environment),
        links=tuple(links),
        owner=owner_of(notification, context.owners),
    )


def alerts_url(context: MessageContext) -> str:
    """Returns the console's page of open alerts; empty without a console."""
    console = context.console_url.rstrip("/")
    return f"{console}/alerts" if console else ""


def runbook_url(notification: Notification, context: MessageContext) -> str:
    """Returns the URL of a notification's runbook; empty without published docs."""
    return f"{context.docs_url.rstrip('/')}/{notification.runbook}" if context.docs_url and notification.runbook else ""


def alert_key(notification: Notification, environment: str) -> str:
    """Returns a key of an alert in an environment, of at most 255 characters."""
    key = ":".join(part for part in (environment, notification.cause, notification.subject) if part)
    if len(key) <= _MAX_KEY_LENGTH and key.isascii():
        return key
    return f"{notification.cause}:{hashlib.sha256(key.encode()).hexdigest()}"


def subject_names(notification: Notification) -> tuple[str, ...]:
    """Returns the words of an alert's subject, its pipeline first if that is recorded."""
    recorded = notification.detail.get("pipeline")
    first = (recorded,) if isinstance(recorded, str) and recorded else ()
    return tuple(dict.fromkeys((*first, *subject_words(notification.subject.partition("{")[0]))))


def owner_of(notification: Notification, owners: Mapping[str, str]) -> str:
    """Returns the owner of the process that an alert is about; empty if unknown."""
    return next((owners[name] for name in subject_names(notification) if name in owners), "")


def _title(notification: Notification) -> str:
    """Returns a title such as `Critical: requests that fail, cdn a`."""
    word = {"reminder": f"Still {notification.severity}", "resolved": "Resolved"}.get(
        notification.kind, notification.severity.capitalize()
    )
    title, labels = notification.detail.get("title"), notification.detail.get("labels")
    name = title if isinstance(title, str) and title else notification.subject
    if notification.cause == RULE_FIRING and name == title:
        pairs = labels.items() if isinstance(labels, dict) else ()
        words = [title, *(f"{name} {'unknown' if value is None else value}" for name, value in pairs)]
        return _shorten(f"{word}: {', '.join(words)}", MAX_TITLE_LENGTH)
    cause = catalog().alerts.get(notification.cause)
    meaning = cause.meaning if cause is not None else notification.cause
    return _shorten(f"{word}: {name}: {meaning}", MAX_TITLE_LENGTH)


def _next_step(notification: Notification) -> str:
    """Returns the next step of the alert itself, otherwise the general one of its cause."""
    own = notification.detail.get("next_step")
    return own if isinstance(own, str) and own else next_step_for(notification.cause)


def _text(notification: Notification, next_step: str) -> str:
    # The summary of a rule ends with its advice, which a message shows by itself.
    text = _shorten(notification.summary.removesuffix(next_step), MAX_TEXT_LENGTH)
    if notification.changes <= 1:
        return text
    return f"{text} It changed {notification.changes} times since the last notification."


def _instant(text: str) -> str:
    at = parse_iso(text)
    return f"{at:%Y-%m-%d %H:%M} UTC" if at is not None else text


def _shorten(text: str, length: int) -> str:
    """Returns the text on one line, cut at a word."""
    line = " ".join(text.split())
    if len(line) <= length:
        return line
    return f"{line[: length - 1].rsplit(' ', 1)[0]}…"
