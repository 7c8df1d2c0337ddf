"""Slack and Teams accept the messages of an alert's life, by their schemas, and no text becomes markup."""

from __future__ import annotations

import pytest

from deltaworks.alerts.channels import Send
from deltaworks.alerts.channels.webhooks import slack_sender, teams_sender
from deltaworks.alerts.raising import raise_alert
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import DeltaworksError
from deltaworks.specs.alert_channels import SlackChannelSpec, TeamsChannelSpec
from deltaworks.testing import present
from tests.unit.alerts.channels.alert_samples import ADVICE, CONTEXT, life_of_an_alert, rule_alert
from tests.unit.alerts.channels.wire_servers import SlackServer, TeamsServer, running
from tests.unit.alerts.conftest import Clock

SLACK = SlackChannelSpec.model_validate({"kind": "slack", "name": "chat", "url": "env:CHAT_URL"})
TEAMS = TeamsChannelSpec.model_validate({"kind": "teams", "name": "chat", "url": "env:CHAT_URL"})


def test_slack_shows_an_alert_and_its_end(objects: LocalObjects, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(SlackServer()) as server:
        monkeypatch.setenv("CHAT_URL", f"{server.url}/services/T0/B0/secret")
        for notification in life_of_an_alert(objects, clock).values():
            slack_sender(SLACK, CONTEXT)(notification)

    assert server.errors == []
    assert [content["text"].partition(":")[0] for content in server.received] == [
        "*Warning",
        "*Critical",
        "*Still critical",
        "*Resolved",
    ]
    first, last = server.received[0]["attachments"][0], server.received[-1]["attachments"][0]
    texts = [block["text"]["text"] for block in first["blocks"] if block["type"] == "section"]
    assert texts[1] == f"*Next:* {ADVICE}"
    assert texts[2].startswith("<https://docs.example.com/how-to/write-rules.md#a-rule-fires|Runbook>")
    assert first["color"] != last["color"]


def test_teams_shows_an_alert_and_its_end(objects: LocalObjects, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(TeamsServer()) as server:
        monkeypatch.setenv("CHAT_URL", f"{server.url}/workflows/secret")
        for notification in life_of_an_alert(objects, clock).values():
            teams_sender(TEAMS, CONTEXT)(notification)

    assert server.errors == []
    cards = [content["attachments"][0]["content"] for content in server.received]
    assert [card["body"][0]["color"] for card in cards] == ["warning", "attention", "attention", "good"]
    assert [action["title"] for action in cards[0]["actions"]] == ["Runbook", "Open alerts"]
    assert [action["title"] for action in cards[-1]["actions"]] == ["Open alerts"]
    assert all(block["wrap"] for card in cards for block in card["body"]), "read without scrolling sideways"


@pytest.mark.parametrize(
    "summary", ["<!channel> <https://evil.test|x> & *b*", "[x](https://evil.test) _a_ `b`", "é" * 9_000]
)
def test_no_text_becomes_a_link_a_mention_or_too_long(
    objects: LocalObjects, clock: Clock, monkeypatch: pytest.MonkeyPatch, summary: str
) -> None:
    notification = present(raise_alert(objects, **rule_alert(summary=summary), now=clock.now))
    with running(SlackServer()) as slack, running(TeamsServer()) as teams:
        monkeypatch.setenv("CHAT_URL", slack.url)
        slack_sender(SLACK, CONTEXT)(notification)
        monkeypatch.setenv("CHAT_URL", teams.url)
        teams_sender(TEAMS, CONTEXT)(notification)

    assert slack.errors == teams.errors == []
    text = slack.received[0]["attachments"][0]["blocks"][0]["text"]["text"]
    assert "<" not in text
    card_text = teams.received[0]["attachments"][0]["content"]["body"][1]["text"]
    assert "[x](" not in card_text


@pytest.mark.parametrize("status", [400, 404, 429, 500])
def test_a_rejection_says_why_without_the_address(
    objects: LocalObjects, clock: Clock, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    notification = present(raise_alert(objects, **rule_alert(), now=clock.now))
    senders: list[Send] = [slack_sender(SLACK, CONTEXT), teams_sender(TEAMS, CONTEXT)]
    with running(SlackServer(statuses=[status, status])) as server:
        monkeypatch.setenv("CHAT_URL", f"{server.url}/secret-path")
        for send in senders:
            with pytest.raises(DeltaworksError) as refused:
                send(notification)
            assert refused.value.condition == ("NOTIFICATION_REJECTED" if status == 400 else "CHANNEL_FAILED")
            assert f"{status} (try later)" in refused.value.message
            assert "secret-path" not in str(refused.value)
