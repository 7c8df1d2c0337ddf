"""`deltaworks feeds`: listings, dead letters, and replays that are counted before they are requested."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deltaworks.cli import feeds
from deltaworks.errors import ConcurrencyError, ConfigError
from deltaworks.feeds.messages import DeadReason
from deltaworks.operations.base import OperationContext
from deltaworks.operations.registry import get_operation
from deltaworks.operations.replay import ReplayFeedOptions, replay_feed
from tests.commands import output_of
from tests.unit.feeds.feed_harness import FeedHarness, Receiver

run = partial(output_of, "feeds")


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeedHarness:
    harness = FeedHarness(tmp_path)
    monkeypatch.setattr(feeds, "catalog", lambda: harness.catalog)
    return harness


def replayed(harness: FeedHarness, **options: Any) -> list[str]:
    context = OperationContext(operation=get_operation("replay_feed"), catalog=harness.catalog, subject="shop")
    return [str(part) for part in replay_feed(context, ReplayFeedOptions(feed="offers", **options)).parts]


def test_feeds_are_listed_with_their_position_and_lag(harness: FeedHarness) -> None:
    (before,) = json.loads(run("list", "--json"))
    assert (before["feed"], before["position"]) == ("shop.offers", "not started")
    harness.rebuild(0, {"de": 1})
    harness.feed(Receiver()).run_once()
    (after,) = json.loads(run("list", "shop", "--json"))
    version = harness.record.position.version
    assert (after["delivery"], after["position"], after["lag_seconds"]) == (1, f"version {version}", 0)


def test_dead_letters_are_listed_with_reasons_and_deleted_on_request(harness: FeedHarness) -> None:
    harness.rebuild(0, {"de": 1})
    harness.feed(Receiver(faults=lambda message: (DeadReason.TOO_LARGE, "300 KB"))).run_once()
    (letter,) = json.loads(run("dead-letters", "shop", "offers", "--json"))
    assert (letter["reason"], letter["detail"]) == ("too_large", "300 KB")
    run("dead-letters", "shop", "offers", "--delete", "--json")
    assert json.loads(run("dead-letters", "shop", "offers", "--json")) == []


def test_a_replay_is_counted_first_and_requested_once(harness: FeedHarness) -> None:
    feed = harness.feed(Receiver())
    for orders in (1, 2):
        harness.rebuild(0, {"de": orders, "at": 0})
        feed.run_once()
    assert replayed(harness, since=1)[0] == "3 changes of 2 deliveries would be sent again."
    assert replayed(harness, everything=True)[0] == "all 2 rows of turnover would be sent again."
    assert harness.records.replay_request() is None
    replayed(harness, since=2, dry_run=False)
    request = harness.records.replay_request()
    assert request is not None
    assert request.since == 2
    with pytest.raises(ConcurrencyError, match="FEED_REPLAY_PENDING"):
        replayed(harness, everything=True, dry_run=False)


@pytest.mark.parametrize(
    ("options", "condition"),
    [
        ({}, "OPTION_INVALID"),
        ({"since": 1, "everything": True}, "OPTION_INVALID"),
        ({"since": 7}, "FEED_DELIVERY_UNKNOWN"),
        ({"since": 1, "limit": 1}, "FEED_REPLAY_UNBOUNDED"),
    ],
)
def test_an_invalid_or_unbounded_replay_is_rejected(
    harness: FeedHarness, options: dict[str, Any], condition: str
) -> None:
    harness.rebuild(0, {"de": 1, "at": 0})
    harness.feed(Receiver()).run_once()
    with pytest.raises(ConfigError, match=condition):
        replayed(harness, dry_run=False, **options)


def test_an_unknown_feed_gets_a_suggestion(harness: FeedHarness) -> None:
    with pytest.raises(ConfigError, match="FEED_UNKNOWN"):
        run("dead-letters", "shop", "offer")
