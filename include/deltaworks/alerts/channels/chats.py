"""Channels `slack` and `teams`: messages for chats, by the webhooks that these offer.

A webhook cannot change a message that it has posted, so the end of an alert is a message of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from deltaworks.alerts.channels.channel import Send
from deltaworks.alerts.channels.message import Link, Message, MessageContext, Tone, message_of
from deltaworks.alerts.channels.posting import post_json
from deltaworks.alerts.notification import Notification
from deltaworks.specs.alert_channels import SlackChannelSpec, TeamsChannelSpec

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
