"""Events that go through the collector's Lambda handler into records, and rows of a table of another pipeline, give the
generator's counts.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from collector.drain import RecordDestination
from collector.lambda_gateway import Gateway
from collector.packing import SpooledEvent
from collector.sinks import DeadLetter
from deltaworks.events.chunks import Payload
from deltaworks.sources.delta import RowReader
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.collector_file import load_collector
from deltaworks.tables.query import connect
from generator.games import deliveries, generate_games
from generator.truth import GamesTruth, TruthCounter
from sandbox.demo.answers import Answer, AnswerSheet, answer_mobile, answer_revenue
from sandbox.demo.collector_delivery import SOURCES
from sandbox.demo.collector_sink import events_of
from sandbox.demo.demo_options import ALL_PIPELINES, demo_settings
from tests.unit.pipelines.shipped_lake import INGESTED_AT_US, ShippedLake, without_dedupe

SETTINGS = demo_settings(None, pipelines=ALL_PIPELINES, game_events=4_000, mobile_events=4_000)
SHARDS = [f"shardId-{number:012}" for number in range(4)]


class Records:
    """A sink that keeps the payload of each record."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, events: Sequence[SpooledEvent]) -> list[DeadLetter]:
        self.sent += [event.payload for event in events]
        return []

    def close(self) -> None:
        pass


def published() -> tuple[list[bytes], GamesTruth]:
    """The records that phones publish with the shipped declaration of the collector, and the truth about them."""
    assert SETTINGS.mobile is not None
    source, key = SOURCES["mobile"]
    spec = load_collector("edge", root=PROJECT_ROOT)
    spec = spec.model_copy(update={"sources": {source: spec.sources[source]}})
    records = Records()
    gateway = Gateway(spec, {source: RecordDestination(open_sink=lambda: records)})

    def post(_key: str, body: bytes) -> None:
        for event in events_of(body):
            request = {"path": "/v1/events", "httpMethod": "POST", "queryStringParameters": {"writeKey": key}}
            request["headers"] = {"Content-Type": "application/json"}
            answer = gateway.handle(request | {"body": event.decode("latin-1")})
            assert answer["statusCode"] == 200

    return records.sent, generate_games(SETTINGS.mobile, post)


def wrong(answers: Sequence[Answer]) -> list[str]:
    return [f"{answer.question}: {answer.computed}, not {answer.truth}" for answer in answers if not answer.is_right]


def mobile_answers(lake: ShippedLake, truth: GamesTruth) -> list[Answer]:
    sheet = AnswerSheet(*connect(lake.catalog))
    answer_mobile(sheet, truth)
    return sheet.answers


def test_events_that_phones_publish_through_kinesis_are_counted_once(tmp_path: Path) -> None:
    records, truth = published()
    payloads = [
        Payload(number, SHARDS[number % 4], data, record={"shard": SHARDS[number % 4]}, arrived_at_us=INGESTED_AT_US)
        for number, data in enumerate(records)
    ]
    lake = ShippedLake(tmp_path, "mobile")
    lake.land_payloads("mobile", payloads)
    lake.build("mobile")

    answers = mobile_answers(lake, truth)

    assert wrong(answers) == []
    assert len(answers) == 5
    assert truth.quarantined_rows > 0
    assert truth.distinct_events < truth.accepted_rows
    # The declaration knows nothing of levels: they are kept all the same.
    starts = "event_name = 'level_start' AND _rest.eventParams.difficulty IS NOT NULL"
    assert lake.one(f"SELECT count(*) FROM mobile.events WHERE {starts}") == truth.bronze_rows["level_start"]


def test_without_dedupe_what_phones_send_again_counts_twice(tmp_path: Path) -> None:
    records, truth = published()
    lake = ShippedLake(
        tmp_path, "mobile", edit=lambda path, text: without_dedupe(text) if path.endswith("pipeline.yaml") else text
    )
    payloads = [Payload(number, "s", data, record={"shard": "s"}) for number, data in enumerate(records)]
    lake.land_payloads("mobile", payloads)
    lake.build("mobile")

    assert any(text.startswith("distinct events by type") for text in wrong(mobile_answers(lake, truth)))


@pytest.mark.parametrize("is_read_again", [False, True])
def test_rows_of_another_pipeline_are_its_events(tmp_path: Path, is_read_again: bool) -> None:
    assert SETTINGS.games is not None
    counter = TruthCounter(SETTINGS.games)
    objects = list(deliveries(SETTINGS.games, counter))
    lake = ShippedLake(tmp_path, "games", "revenue")
    lake.land("games", *((each.key, gzip.decompress(each.body)) for each in objects))
    rows = lake.rows("SELECT row_number() OVER (), to_json(p) FROM games.purchase p")
    positions, texts = zip(*rows, strict=True)
    reader = RowReader(key="games/purchase", seq=0)
    batch = pa.record_batch([pa.array(positions), pa.array(map(str, texts))], names=["position", "row"])
    for _ in range(1 + is_read_again):
        lake.land_payloads("revenue", [record.payload for record in reader([batch])])
    lake.build("revenue")
    sheet = AnswerSheet(*connect(lake.catalog))

    answer_revenue(sheet, counter.truth(), compactions=1)

    assert len(sheet.answers) == 3
    assert len(wrong(sheet.answers)) == (3 if is_read_again else 0)
