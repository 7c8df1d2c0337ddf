"""The feed `player_offers` of `games`: payloads through parser and view into a real queue, by the player's token."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control.clock import utc_now
from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError
from deltaworks.events.redaction_keys import load_redaction_keys, lookup_tokens
from deltaworks.feeds.delivery import StopRequested
from deltaworks.feeds.messages import Message
from deltaworks.feeds.process import Feed
from deltaworks.feeds.sinks import Sink, SqsSink
from deltaworks.feeds.sinks.base import SendOutcome
from deltaworks.gold.model_tables import refresh_external_inputs
from deltaworks.privacy import paths
from deltaworks.privacy.tokens.envelope_encryption import suppression_digest
from deltaworks.privacy.tokens.suppression import SuppressionRecord
from deltaworks.specs.feeds import SqsSinkSpec
from deltaworks.testing import present
from generator.wire import event_json, request_json
from tests.commands import invoke
from tests.unit.alerts.aws_harness import Aws
from tests.unit.feeds.feed_harness import Receiver, applied
from tests.unit.pipelines.shipped_lake import ShippedLake

STUCK = {"segment": "stuck", "offer": "booster_pack", "discount_percent": 40}


@dataclass
class Game:
    """The pipeline `games` and what its players do now."""

    lake: ShippedLake
    events: list[bytes] = field(default_factory=list)
    count: int = 0

    def happens(
        self,
        name: str,
        player: str | None,
        *,
        minutes_ago: float = 1,
        event_id: str = "",
        happened: float | None = None,
    ) -> str:
        """An event that the server receives so many minutes ago; by the device's clock it happened `happened` minutes
        ago."""
        self.count += 1
        event_id = event_id or f"e{self.count}"
        device_at = time.time() - 60 * (minutes_ago if happened is None else happened)
        params = {
            "event_id": event_id,
            "device_id": f"device of {player}",
            "player_id": player,
            "client_event_time": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(device_at)),
            "level": 7,
            "amount": 4.99,
        }
        event = event_json(name, int(time.time() - 60 * minutes_ago), params)
        self.events.append(request_json(event, self.count, "203.0.113.7"))
        return event_id

    def land(self) -> None:
        data, self.events = b"".join(self.events), []
        self.lake.land("games", (f"games/{self.count}.json", data))

    def rows(self) -> dict[str, dict[str, Any]]:
        columns = "player_id", "segment", "offer", "discount_percent"
        rows = self.lake.rows(f"SELECT {', '.join(columns)} FROM games.player_offers")
        return {row[0]: dict(zip(columns, row, strict=True)) for row in rows}

    def token(self, player: str) -> str:
        return present(lookup_tokens(self.lake.catalog, "players", kind="player", values=[player])[player])

    def feed(self, sink: Sink) -> Feed:
        spec = self.lake.catalog.pipeline("games")
        declaration = next(feed for feed in spec.feeds if feed.name == "player_offers")
        return Feed(self.lake.catalog, spec, declaration, open_objects(self.lake.catalog.environment.lake), sink)


@pytest.fixture
def game(tmp_path: Path) -> Game:
    game = Game(ShippedLake(tmp_path, "games"))
    refresh_external_inputs(game.lake.catalog, "games")
    for name in ("level_complete", "level_fail", "purchase"):
        game.happens(name, "p-first")
    game.land()
    return game


def test_the_offer_follows_failures_completions_and_purchases(game: Game) -> None:
    for _ in range(3):
        game.happens("level_fail", "p-stuck")
        game.happens("level_complete", "p-good", minutes_ago=2)
        game.happens("level_fail", "p-recovers", minutes_ago=3)
        game.happens("level_fail", "p-early", minutes_ago=20)
    game.happens("level_complete", "p-recovers", minutes_ago=2)
    game.happens("level_fail", None)
    game.land()
    segments = {game.token(name): name for name in ("p-first", "p-stuck", "p-good", "p-recovers", "p-early")}
    found = {segments[token]: row["segment"] for token, row in game.rows().items()}
    assert found == {"p-first": "buyer", "p-stuck": "stuck", "p-good": "on_a_roll", "p-recovers": "steady"}

    game.happens("purchase", "p-stuck", minutes_ago=0.5)
    game.land()
    assert game.rows()[game.token("p-stuck")]["offer"] == "thank_you_chest"


def test_copies_change_no_offer(game: Game) -> None:
    first = game.happens("level_fail", "p-1", minutes_ago=3)
    game.happens("level_fail", "p-1", minutes_ago=3)
    game.land()
    game.happens("level_fail", "p-1", minutes_ago=1, event_id=first, happened=3)  # a copy within the window
    game.happens("level_fail", "p-1", minutes_ago=1, event_id="earlier", happened=90)  # and one of before
    game.land()
    assert game.rows()[game.token("p-1")]["segment"] == "steady"
    game.happens("level_fail", "p-1", minutes_ago=1)
    game.land()
    assert game.rows()[game.token("p-1")]["segment"] == "stuck"


def test_an_offer_reaches_the_shops_queue_under_the_token_that_it_looks_up(game: Game, aws: Aws) -> None:
    queue = aws.queue()
    sink = SqsSink(SqsSinkSpec(kind="sqs", queue_url=queue), aws.messaging)
    feed = game.feed(sink)
    feed.run_once()
    for _ in range(3):
        game.happens("level_fail", "p-1")
    game.land()
    feed.run_once()
    feed.run_once()
    sink.close()

    sqs, messages = aws.client("sqs"), []
    while batch := sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages"):
        for message in batch:
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
            messages.append(json.loads(message["Body"]))
    (message,) = [message for message in messages if message["key"] == {"player_id": game.token("p-1")}]
    assert message["row"] == {"player_id": game.token("p-1"), **STUCK}
    assert len(messages) == 2, "the first player's and this one's, once"
    assert "p-1" not in json.dumps(messages)


class DyingSink(Receiver):
    """A receiver whose feed is killed after it took so many messages, before their receipt is recorded."""

    def __init__(self, dies_after: int) -> None:
        super().__init__()
        self._remaining = dies_after

    def send(self, messages: Sequence[Message]) -> SendOutcome:
        super().send(messages[: self._remaining])
        self._remaining -= len(messages)
        if self._remaining <= 0:
            raise StopRequested
        return SendOutcome()


@pytest.mark.parametrize("dies_after", [300, 510])
def test_a_killed_feed_continues_under_the_same_ids(game: Game, dies_after: int) -> None:
    for number in range(700):
        game.happens("level_fail", f"p-{number}")
    game.land()
    killed, successor = DyingSink(dies_after), Receiver()
    with pytest.raises(StopRequested):
        game.feed(killed).run_once()
    game.feed(successor).run_once()

    both = [*killed.messages, *successor.messages]
    assert applied(both, ["player_id"]) == {(token,): row for token, row in game.rows().items()}
    assert len({message["id"] for message in both}) == 701, "a repeated message has its id, so the shop drops it"
    assert len(both) - 701 <= 500


def test_a_changed_offer_table_sends_the_offers_of_its_segment_only(game: Game) -> None:
    for _ in range(3):
        game.happens("level_fail", "p-1")
    game.happens("level_fail", "p-2")
    game.land()
    receiver = Receiver()
    feed = game.feed(receiver)
    feed.run_once()
    receiver.received()

    file = game.lake.catalog.folder("games") / "reference" / "segment_offers.csv"
    file.write_text(file.read_text().replace("stuck,booster_pack,40", "stuck,extra_lives,50"))
    refresh_external_inputs(game.lake.catalog, "games")
    feed.run_once()
    (message,) = receiver.received()
    extra_lives = {"segment": "stuck", "offer": "extra_lives", "discount_percent": 50}
    assert message["row"] == {"player_id": game.token("p-1"), **extra_lives}


def test_the_shop_lists_the_tokens_of_its_players(game: Game, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltaworks.cli.erasures.catalog", lambda: game.lake.catalog)
    listed = invoke("privacy", "tokens", "players", "--kind", "player", "--csv", input="p-1\n\n p-2 \n")
    assert listed.exit_code == 0, listed.output
    _, *rows = listed.output.split()
    assert rows == [f"{player},{game.token(player)}" for player in ("p-1", "p-2")]


def test_an_erased_player_has_no_token_and_an_unknown_kind_is_an_error(game: Game) -> None:
    token = game.token("p-1")
    lake = game.lake.catalog.environment.lake
    keys = present(load_redaction_keys(game.lake.catalog.pipeline("games"), lake))
    record = SuppressionRecord(
        namespace="players",
        number=1,
        request_id="e1",
        created_at=utc_now().isoformat(),
        digests=(suppression_digest(keys.token_key, token),),
    )
    open_objects(lake).put(paths.suppression_record_key("players", 1), record.encode())
    found = lookup_tokens(game.lake.catalog, "players", kind="player", values=["p-1", "p-2", ""])
    assert (found["p-1"], set(found)) == (None, {"p-1", "p-2"})
    assert found["p-2"] is not None
    with pytest.raises(ConfigError, match="TOKEN_KIND_UNKNOWN"):
        lookup_tokens(game.lake.catalog, "players", kind="gamer", values=["p-1"])
