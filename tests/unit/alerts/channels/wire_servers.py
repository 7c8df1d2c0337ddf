"""Servers of the formats that channels send: they validate each request by its published schema and keep state."""

from __future__ import annotations

import datetime as dt
import importlib.resources
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jsonschema

from tests.http_server import HttpAnswer, HttpRequest, http_server

ROUTING_KEY = "R" * 32
Server = TypeVar("Server", bound="WireServer")


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "required": [*required],
        "properties": required | (optional or {}),
        "additionalProperties": False,
    }


def _text(limit: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": limit}


_LABELS = {
    "type": "object",
    "propertyNames": {"pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"},
    "additionalProperties": {"type": "string", "minLength": 1},
}
_INSTANT = {"type": "string", "format": "date-time"}
#: `postableAlerts` of https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml, without unknown keys.
ALERTMANAGER_ALERTS = {
    "type": "array",
    "minItems": 1,
    "items": _object(
        {"labels": _LABELS | {"required": ["alertname"]}},
        {
            "annotations": _LABELS,
            "startsAt": _INSTANT,
            "endsAt": _INSTANT,
            "generatorURL": {"type": "string", "format": "uri"},
        },
    ),
}
_PAGERDUTY_LINKS = {
    "type": "array",
    "items": _object({"href": {"type": "string", "pattern": "^https?://"}}, {"text": {"type": "string"}}),
}
#: https://developer.pagerduty.com/docs/events-api-v2/trigger-events/, with the limits of the page.
PAGERDUTY_EVENT = _object(
    {
        "routing_key": {"type": "string", "minLength": 32, "maxLength": 32},
        "event_action": {"enum": ["trigger", "acknowledge", "resolve"]},
        "dedup_key": _text(255),
    },
    {
        "payload": _object(
            {
                "summary": _text(1024),
                "source": {"type": "string", "minLength": 1},
                "severity": {"enum": ["critical", "error", "warning", "info"]},
            },
            {
                "timestamp": _INSTANT,
                "component": {"type": "string"},
                "group": {"type": "string"},
                "class": {"type": "string"},
                "custom_details": {"type": "object"},
            },
        ),
        "links": _PAGERDUTY_LINKS,
        "images": {"type": "array"},
        "client": {"type": "string"},
        "client_url": {"type": "string"},
    },
) | {"if": {"properties": {"event_action": {"const": "trigger"}}}, "then": {"required": ["payload"]}}
#: https://developer.pagerduty.com/docs/events-api-v2/change-events/
PAGERDUTY_CHANGE = _object(
    {
        "routing_key": {"type": "string", "minLength": 32, "maxLength": 32},
        "payload": _object(
            {"summary": _text(1024)},
            {"source": {"type": "string"}, "timestamp": _INSTANT, "custom_details": {"type": "object"}},
        ),
    },
    {"links": _PAGERDUTY_LINKS, "images": {"type": "array"}},
)
_MRKDWN = _object({"type": {"const": "mrkdwn"}, "text": _text(3000)})
#: https://docs.slack.dev/reference/block-kit/blocks/ and its limits, of the blocks that are used.
SLACK_MESSAGE = _object(
    {"text": _text(4000)},
    {
        "attachments": {
            "type": "array",
            "maxItems": 1,
            "items": _object(
                {
                    "color": {"type": "string", "pattern": "^#[0-9a-f]{6}$"},
                    "fallback": {"type": "string"},
                    "blocks": {
                        "type": "array",
                        "minItems": 1,
                        "maxItems": 50,
                        "items": {
                            "oneOf": [
                                _object({"type": {"const": "section"}, "text": _MRKDWN}),
                                _object(
                                    {
                                        "type": {"const": "context"},
                                        "elements": {"type": "array", "minItems": 1, "maxItems": 10, "items": _MRKDWN},
                                    }
                                ),
                            ]
                        },
                    },
                }
            ),
        }
    },
)


def _card_schema() -> dict[str, Any]:
    """The schema of Adaptive Cards 1.4, as Microsoft publishes it."""
    file = importlib.resources.files("adaptive_cards") / "schemas" / "schema-1.4.json"
    schema: dict[str, Any] = json.loads(file.read_text(encoding="utf-8-sig"))
    return schema


#: The envelope of "post to a channel when a webhook request is received", with one card.
TEAMS_MESSAGE = _object(
    {
        "type": {"const": "message"},
        "attachments": {
            "type": "array",
            "minItems": 1,
            "items": _object(
                {
                    "contentType": {"const": "application/vnd.microsoft.card.adaptive"},
                    "contentUrl": {"type": "null"},
                    "content": {"type": "object", "required": ["type", "version", "body"]},
                }
            ),
        },
    }
)


def errors_of(content: Any, schema: dict[str, Any]) -> list[str]:
    """Returns what a content violates in a schema, formats of times and addresses included."""
    validator = jsonschema.validators.validator_for(schema)(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(content)]


@dataclass
class WireServer:
    """What a server received, what was wrong with it, and the status of its next answers."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    received: list[Any] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    requests: list[HttpRequest] = field(default_factory=list)

    def accept(self, request: HttpRequest) -> HttpAnswer:
        """Validates and stores a request, and answers it."""
        self.requests.append(request)
        if self.statuses:
            return self.statuses.pop(0), b"try later"
        content = request.json()
        wrong = [] if request.headers["Content-Type"] == "application/json" else ["it is not JSON"]
        wrong += self.problems(request, content)
        self.errors += wrong
        if wrong:
            return 400, "; ".join(wrong).encode()
        self.received.append(content)
        return self.answer(request, content)

    def problems(self, request: HttpRequest, content: Any) -> list[str]:
        raise NotImplementedError

    def answer(self, request: HttpRequest, content: Any) -> HttpAnswer:
        raise NotImplementedError


class SlackServer(WireServer):
    """An incoming webhook of Slack."""

    def problems(self, request: HttpRequest, content: Any) -> list[str]:
        return errors_of(content, SLACK_MESSAGE)

    def answer(self, request: HttpRequest, content: Any) -> HttpAnswer:
        return 200, b"ok"


class TeamsServer(WireServer):
    """A workflow of Teams: it accepts at once, and drops messages above 28 KB."""

    def problems(self, request: HttpRequest, content: Any) -> list[str]:
        wrong = errors_of(content, TEAMS_MESSAGE)
        if len(request.body) > 28_000:
            wrong.append("it is larger than 28 KB")
        return wrong or errors_of(content["attachments"][0]["content"], _card_schema())

    def answer(self, request: HttpRequest, content: Any) -> HttpAnswer:
        return 202, b""


@dataclass
class PagerDutyServer(WireServer):
    """PagerDuty's event endpoints: one open incident per deduplication key."""

    incidents: dict[str, dict[str, Any]] = field(default_factory=dict)
    changes: list[dict[str, Any]] = field(default_factory=list)

    def problems(self, request: HttpRequest, content: Any) -> list[str]:
        schema = {"/v2/enqueue": PAGERDUTY_EVENT, "/v2/change/enqueue": PAGERDUTY_CHANGE}[request.path]
        wrong = errors_of(content, schema)
        return wrong if wrong or content["routing_key"] == ROUTING_KEY else ["Invalid routing key"]

    def answer(self, request: HttpRequest, content: Any) -> HttpAnswer:
        if request.path == "/v2/change/enqueue":
            self.changes.append(content["payload"])
        elif content["event_action"] == "resolve":
            self.incidents.pop(content["dedup_key"], None)
        else:
            self.incidents[content["dedup_key"]] = content["payload"]
        return 202, {"status": "success", "message": "Event processed"}


@dataclass
class AlertmanagerServer(WireServer):
    """An Alertmanager: an alert is identified by its labels, and active until `endsAt`."""

    alerts: dict[frozenset[tuple[str, str]], dict[str, Any]] = field(default_factory=dict)

    def problems(self, request: HttpRequest, content: Any) -> list[str]:
        wrong = [] if request.path == "/api/v2/alerts" else [f"there is no {request.path}"]
        wrong += errors_of(content, ALERTMANAGER_ALERTS)
        return wrong + [
            "it ends before it starts" for alert in content if _instant(alert["endsAt"]) < _instant(alert["startsAt"])
        ]

    def answer(self, request: HttpRequest, content: Any) -> HttpAnswer:
        self.alerts |= {frozenset(alert["labels"].items()): alert for alert in content}
        return 200, b""

    def active(self, at: dt.datetime) -> list[dict[str, Any]]:
        """Returns the alerts that are active at a time."""
        return [alert for alert in self.alerts.values() if _instant(alert["endsAt"]) > at]


def _instant(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Runs a server on a free local port."""
    with http_server(server.accept) as address:
        server.url = address
        yield server
