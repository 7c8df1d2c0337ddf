"""Channels that post to webhooks: `pagerduty` and `alertmanager`, which keep alerts and close them when ours are
resolved, and the chats `slack` and `teams`. A chat's webhook cannot change a message that it has posted, so the end of
an alert is a message of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

from deltaworks.alerts.channels.channel import Send, post_json
from deltaworks.alerts.channels.message import Link, Message, MessageContext, Tone, alerts_url, message_of, runbook_url
from deltaworks.alerts.notification import Notification
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.errors import Severity
from deltaworks.errors.conditions import AlertCause, catalog
from deltaworks.specs.alert_channels import (
    AlertmanagerChannelSpec,
    PagerDutyChannelSpec,
    SlackChannelSpec,
    TeamsChannelSpec,
)
from deltaworks.specs.base import resolve_text

_CLIENT: Final = "Deltaworks"
#: Limit of PagerDuty's `summary`.
_MAX_SUMMARY_LENGTH: Final = 1_024
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
#: How long Alertmanager keeps an alert beyond the reminder that is due next.
_REMINDER_DELAY: Final = timedelta(hours=1)


def pagerduty_sender(spec: PagerDutyChannelSpec, context: MessageContext) -> Send:
    """Creates the sender of an Events API v2 integration."""

    def send(notification: Notification) -> None:
        base, key = resolve_text(spec.url).rstrip("/"), spec.routing_key.resolve()
        path, content = pagerduty_event(notification, message_of(notification, context))
        post_json(
            spec.name,
            f"{base}{path}",
            {"routing_key": key, **content},
            timeout_seconds=spec.timeout_seconds,
            secrets=(key,),
        )

    return send


def pagerduty_event(notification: Notification, message: Message) -> tuple[str, dict[str, Any]]:
    """Returns the path of PagerDuty's API and the event, without its routing key.

    An alert triggers or resolves the incident of its key; repeats update that incident. What only reports an action is
    a change event, since nothing would ever close its incident.
    """
    links = [{"href": link.url, "text": link.text} for link in message.links]
    if _is_event(notification):
        change = {"summary": message.title, "source": message.footer, "timestamp": notification.at}
        details = {"text": message.text, "next_step": message.next_step}
        return "/v2/change/enqueue", {"payload": {**change, "custom_details": details}, "links": links}
    if notification.kind == "resolved":
        return "/v2/enqueue", {"event_action": "resolve", "dedup_key": message.key}
    payload = {
        "summary": f"{message.title}: {message.text}"[:_MAX_SUMMARY_LENGTH],
        "source": notification.subject,
        "severity": notification.severity,
        "timestamp": notification.since,
        "class": notification.cause,
        "custom_details": {
            "text": message.text,
            "next_step": message.next_step,
            "about": message.footer,
            "owner": message.owner,
            "notification": notification.id,
        },
    }
    event = {"event_action": "trigger", "dedup_key": message.key, "client": _CLIENT, "links": links, "payload": payload}
    return "/v2/enqueue", event


def alertmanager_sender(spec: AlertmanagerChannelSpec, context: MessageContext) -> Send:
    """Creates the sender of an Alertmanager."""

    def send(notification: Notification) -> None:
        headers = {} if spec.token is None else {"Authorization": f"Bearer {spec.token.resolve()}"}
        post_json(
            spec.name,
            f"{resolve_text(spec.url).rstrip('/')}/api/v2/alerts",
            alertmanager_alerts(notification, message_of(notification, context), context),
            timeout_seconds=spec.timeout_seconds,
            headers=headers,
        )

    return send


def alertmanager_alerts(notification: Notification, message: Message, context: MessageContext) -> list[dict[str, Any]]:
    """Returns the alert in the format of Alertmanager's API v2, first the current one.

    Alertmanager identifies an alert by its labels, of which severity is one: if that changes, the alert of the earlier
    severity ends. An open alert lasts until an hour after the next reminder is due, a resolved one has ended.
    """
    at = parse_iso(notification.at) or utc_now()
    ends_at = at if notification.kind == "resolved" else at + _lifetime(notification)
    earlier = [severity for severity in notification.notified_severities if severity != notification.severity]
    return [
        _alertmanager_alert(notification, message, context, severity=notification.severity, ends_at=ends_at),
        *(_alertmanager_alert(notification, message, context, severity=severity, ends_at=at) for severity in earlier),
    ]


def _alertmanager_alert(
    notification: Notification, message: Message, context: MessageContext, *, severity: Severity, ends_at: datetime
) -> dict[str, Any]:
    annotations = {"summary": message.title, "description": message.text, "next_step": message.next_step}
    annotations["runbook_url"] = runbook_url(notification, context)
    alert = {
        "labels": _labels(notification, message, context, severity),
        "annotations": {name: text for name, text in annotations.items() if text},
        "startsAt": notification.since,
        "endsAt": ends_at.isoformat(timespec="milliseconds"),
    }
    url = alerts_url(context)
    return alert | ({"generatorURL": url} if url else {})


def _labels(
    notification: Notification, message: Message, context: MessageContext, severity: Severity
) -> dict[str, str]:
    """Returns the labels of an alert: those of its rule, and ours, which have priority. Empty ones do not exist."""
    declared = notification.detail.get("labels")
    rule_labels = declared if isinstance(declared, dict) else {}
    labels = {name: str(value) for name, value in rule_labels.items() if value and _LABEL_NAME.fullmatch(name)}
    own = {name: str(notification.detail.get(name) or "") for name in ("pipeline", "rule")}
    labels |= own | {
        "alertname": notification.cause,
        "severity": severity,
        "subject": notification.subject,
        "environment": context.environment,
        "owner": message.owner,
    }
    return {name: value for name, value in labels.items() if value}


def _is_event(notification: Notification) -> bool:
    cause = _cause(notification)
    return cause is not None and cause.is_event


def _lifetime(notification: Notification) -> timedelta:
    cause = _cause(notification)
    return timedelta(seconds=cause.repeat_seconds if cause is not None else 0) + _REMINDER_DELAY


def _cause(notification: Notification) -> AlertCause | None:
    return catalog().alerts.get(notification.cause)


#: Colours of the bar next to a message in Slack.
_SLACK_COLORS: Final[dict[Tone, str]] = {
    "critical": "#d92d20",
    "warning": "#dc8b00",
    "info": "#5b6b7f",
    "resolved": "#1a7f37",
}
#: Colours of Adaptive Cards, which follow the theme of the client.
_CARD_COLORS: Final[dict[Tone, str]] = {
    "critical": "attention",
    "warning": "warning",
    "info": "default",
    "resolved": "good",
}


def slack_sender(spec: SlackChannelSpec, context: MessageContext) -> Send:
    """Creates the sender of an incoming webhook."""
    return _chat_sender(spec, context, slack_content)


def teams_sender(spec: TeamsChannelSpec, context: MessageContext) -> Send:
    """Creates the sender of a workflow."""
    return _chat_sender(spec, context, teams_content)


def _chat_sender(
    spec: SlackChannelSpec | TeamsChannelSpec, context: MessageContext, content_of: Callable[[Message], dict[str, Any]]
) -> Send:
    def send(notification: Notification) -> None:
        content = content_of(message_of(notification, context))
        post_json(spec.name, spec.url.resolve(), content, timeout_seconds=spec.timeout_seconds)

    return send


def slack_content(message: Message) -> dict[str, Any]:
    """Returns a message in Slack's format: `text` is what a phone shows on its lock screen, blocks are the details."""
    details = [_slack_escape(message.text)]
    if message.next_step:
        details.append(f"*Next:* {_slack_escape(message.next_step)}")
    if message.links:
        details.append("  ".join(_slack_link(link) for link in message.links))
    blocks = [
        *({"type": "section", "text": {"type": "mrkdwn", "text": text}} for text in details),
        {"type": "context", "elements": [{"type": "mrkdwn", "text": _slack_escape(message.footer)}]},
    ]
    return {
        "text": f"*{_slack_escape(message.title)}*",
        "attachments": [{"color": _SLACK_COLORS[message.tone], "fallback": message.title, "blocks": blocks}],
    }


def _slack_escape(text: str) -> str:
    """Escapes the three control characters of mrkdwn, so that no text becomes a link or a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _slack_link(link: Link) -> str:
    return f"<{_slack_escape(link.url).replace('|', '%7C')}|{link.text}>"


def teams_content(message: Message) -> dict[str, Any]:
    """Returns a message as an Adaptive Card, in the envelope that a workflow's trigger expects."""
    body = [_card_text(message.title, size="medium", weight="bolder", color=_CARD_COLORS[message.tone])]
    if message.text:
        body.append(_card_text(message.text))
    if message.next_step:
        body.append(_card_text(f"Next: {message.next_step}"))
    body.append(_card_text(message.footer, size="small", isSubtle=True))
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "fallbackText": message.title,
        "body": body,
        "actions": [{"type": "Action.OpenUrl", "title": link.text, "url": link.url} for link in message.links],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def _card_text(text: str, **style: Any) -> dict[str, Any]:
    # A card's text is Markdown, in which these characters would format it.
    escaped = "".join(f"\\{character}" if character in "\\`*_[]#" else character for character in text)
    return {"type": "TextBlock", "text": escaped, "wrap": True, **style}
