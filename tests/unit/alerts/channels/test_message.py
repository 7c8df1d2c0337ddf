"""A message has a title in plain words, a short text, the next step and links, and one key per alert."""

from __future__ import annotations

import dataclasses

from deltaworks.alerts.channels.message import MAX_TEXT_LENGTH, MAX_TITLE_LENGTH, MessageContext, message_of
from deltaworks.alerts.raising import raise_alert
from deltaworks.control.objects import LocalObjects
from deltaworks.errors.conditions import catalog
from deltaworks.testing import present
from tests.unit.alerts.channels.alert_samples import ADVICE, CONTEXT, life_of_an_alert, rule_alert
from tests.unit.alerts.conftest import Clock


def test_a_rule_is_told_in_its_own_words(objects: LocalObjects, clock: Clock) -> None:
    message = message_of(present(raise_alert(objects, **rule_alert("critical"), now=clock.now)), CONTEXT)

    assert message.title == "Critical: Requests that fail, cdn a, region unknown"
    assert message.text == "Requests that fail: cdn a at 0.08; the rule fires when above 0.05 for 3 minutes."
    assert message.next_step == ADVICE
    assert message.footer == (
        "production · RULE_FIRING · video_qos.errors_high{cdn=a,region=} · since 2026-03-01 12:00 UTC"
    )
    assert message.owner == "video"
    assert [(link.text, link.url) for link in message.links] == [
        ("Runbook", "https://docs.example.com/how-to/write-rules.md#a-rule-fires"),
        ("Open alerts", "https://airflow.example.com/deltaworks/alerts"),
    ]


def test_every_word_of_an_alerts_life_is_plain(objects: LocalObjects, clock: Clock) -> None:
    messages = {kind: message_of(one, CONTEXT) for kind, one in life_of_an_alert(objects, clock).items()}

    assert {kind: message.title.partition(":")[0] for kind, message in messages.items()} == {
        "raised": "Warning",
        "escalated": "Critical",
        "reminder": "Still critical",
        "resolved": "Resolved",
    }
    assert messages["resolved"].tone == "resolved"
    assert messages["resolved"].next_step == ""
    assert len({message.key for message in messages.values()}) == 1


def test_every_cause_has_a_title_and_a_next_step_that_fit_a_phone(objects: LocalObjects, clock: Clock) -> None:
    alert = {"cause": "JOB_FAILED", "subject": "stream games", "summary": "word " * 400}
    raised = present(raise_alert(objects, **alert, now=clock.now))
    for cause in catalog().alerts.values():
        notification = raised.replace(cause=cause.name, severity=cause.severity)
        message = message_of(notification, CONTEXT)

        assert cause.meaning[:20] in message.title
        assert message.title.startswith(notification.severity.capitalize())
        assert len(message.title) <= MAX_TITLE_LENGTH
        assert len(message.text) <= MAX_TEXT_LENGTH
        assert message.next_step, cause.name
        assert message.owner == "games-data"


def test_a_rule_that_cannot_be_evaluated_is_not_told_as_one_that_fires(objects: LocalObjects, clock: Clock) -> None:
    notification = present(raise_alert(objects, **rule_alert(cause="RULE_BROKEN"), now=clock.now))

    assert message_of(notification, CONTEXT).title.startswith("Warning: Requests that fail: the SQL of a rule fails")


def test_environments_and_subjects_have_keys_of_their_own(objects: LocalObjects, clock: Clock) -> None:
    one = present(raise_alert(objects, **rule_alert(), now=clock.now))
    other = present(raise_alert(objects, **rule_alert(subject="ü" * 300), now=clock.now))
    third = present(raise_alert(objects, **rule_alert(subject="ü" * 299), now=clock.now))
    staging = dataclasses.replace(CONTEXT, environment="staging")

    keys = [message_of(one, context).key for context in (CONTEXT, staging)]
    keys += [message_of(notification, CONTEXT).key for notification in (other, third)]

    assert len({*keys}) == 4
    assert max(map(len, keys)) <= 255


def test_without_addresses_a_message_has_no_links(objects: LocalObjects, clock: Clock) -> None:
    notification = present(raise_alert(objects, **rule_alert(), now=clock.now))

    assert message_of(notification, MessageContext()).links == ()
