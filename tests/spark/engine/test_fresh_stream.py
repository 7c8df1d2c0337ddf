"""The shipped stream of players run whole: it lands what comes, builds minutes of errors by itself, keeps the newest
report of each view, and publishes who watches."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.health.stop import StopFlag
from deltaworks.control.objects import open_objects
from deltaworks.engine.runner import IngestRun
from deltaworks.sources.objects.log_writer import FileEventLogWriter, ReceivedEvent
from deltaworks.sources.objects.relay.messages import FileEvent
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import connect
from generator.delivery import Delivery
from generator.qos_truth import ViewersTruth
from generator.viewers import ViewersSettings, viewer_deliveries
from sandbox.demo.answers import AnswerSheet
from sandbox.demo.video_answers import answer_viewers_now
from sandbox.servers.moto_corrections import correct_moto
from tests.moto_server import running_moto
from tests.unit.alerts.aws_stage import Aws
from tests.unit.pipelines.shipped_lake import ShippedLake
from tests.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.integration]
PATIENCE_SECONDS = 300.0
#: What is shipped, and what a test does not wait a minute for.
SOONER = {
    "refresh_seconds: 60": "refresh_seconds: 15",
    "stream: {trigger_seconds: 60": "stream: {trigger_seconds: 1",
    "    trigger_seconds: 15": "    trigger_seconds: 1",
    "sql: views/viewers_now.sql,": "sql: views/viewers_now.sql, announce: {channel: widgets, every_seconds: 1},",
}


def sooner(path: str, text: str) -> str:
    for declared, instead in SOONER.items() if path == "video_qos/pipeline.yaml" else ():
        assert declared in text
        text = text.replace(declared, instead)
    return text


class Stream:
    """The stream in a thread of this process, the queue that hears of its view, and its landing folder."""

    def __init__(self, spark: SparkSession, folder: Path, aws: Aws) -> None:
        self.folder, self.aws, self.queue = folder, aws, aws.queue()
        topic = aws.topic()
        aws.subscribe(topic, self.queue)
        environment = {
            "messaging": aws.messaging.model_dump(mode="json", exclude_none=True),
            "alerts": {"channels": [{"kind": "sns", "name": "widgets", "topic": topic}]},
        }
        self.catalog = ShippedLake(folder, "cdn_logs", "video_qos", edit=sooner, environment=environment).catalog
        self.lake = Lake(self.catalog.environment.lake)
        self.objects = open_objects(self.catalog.environment.lake)
        self._log = FileEventLogWriter(self.lake, "landing", epoch=1)
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(spark,), daemon=True)

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        stop = StopFlag(self.objects, paths.stop_request(paths.pipeline_control("video_qos")))
        stop.set(by="tests", reason="it has been seen")
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        assert self._failures == []

    def _run(self, spark: SparkSession) -> None:
        try:
            IngestRun(spark, self.catalog, "video_qos").run()
        except BaseException as error:
            self._failures.append(error)

    def land(self, delivery: Delivery) -> None:
        path = self.folder / "landing" / delivery.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(delivery.body)
        now, tag = datetime.now(UTC), hashlib.md5(delivery.body, usedforsecurity=False).hexdigest()
        size = len(delivery.body)
        event = FileEvent("deltaworks-landing", delivery.key, size, tag, None, now, "ObjectCreated:Put", None)
        self._log.append([ReceivedEvent(event, delivery.key, now)])

    def has_built(self, versions: int = 1) -> bool:
        """Whether it has built its minutes, so often."""
        assert self._failures == []
        table = self.lake.open(paths.table("video_qos", "error_minute"))
        return table is not None and table.version() >= versions - 1

    def wrong(self, truth: ViewersTruth) -> list[str]:
        """What the tables that it keeps fresh do not say yet."""
        assert self._failures == []
        connection, tables = connect(self.catalog)
        with connection:
            if not {"video_qos.views_now", "video_qos.error_minute"} <= {*tables}:
                return ["tables"]
            sheet = AnswerSheet(connection, tables)
            answer_viewers_now(sheet, truth)
            rows = sheet.rows(
                "SELECT minute AT TIME ZONE 'UTC', error_class, sum(errors)::INT "
                "FROM video_qos.error_minute GROUP BY ALL"
            )
            sheet.table_equal(
                "video_qos",
                "errors",
                {(minute.replace(tzinfo=UTC), kind): errors for minute, kind, errors in rows},
                dict(truth.errors),
            )
        return [f"{each.question}: {each.computed}, not {each.truth}" for each in sheet.answers if not each.right]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    monkeypatch.setenv("TEST_ACCESS_KEY", "testing")
    monkeypatch.setenv("TEST_SECRET_KEY", "testing")
    correct_moto()
    with running_moto() as address:
        yield Stream(spark, tmp_path, Aws(address))


def test_a_stream_lands_builds_remembers_and_publishes_by_itself(stream: Stream) -> None:
    truth = ViewersTruth()
    settings = ViewersSettings(views=80, seed=4, reports_per_object=250)
    players = [each for each in viewer_deliveries(settings, truth) if each.key.startswith("video_qos/")]
    heard = []
    with stream:
        for delivery in players[:-2]:
            stream.land(delivery)
        eventually(stream.has_built, "a first build", seconds=PATIENCE_SECONDS)
        for delivery in players[-2:]:
            stream.land(delivery)
        eventually(lambda: stream.wrong(truth) == [], "answers of all that landed", seconds=PATIENCE_SECONDS)
        expected = AnswerSheet(*connect(stream.catalog)).one("SELECT active_users FROM video_qos.viewers_now")

        def published() -> bool:
            heard.extend(stream.aws.received(stream.queue))
            return bool(heard) and heard[-1]["rows"][0]["active_users"] == expected

        eventually(published, "the last answer on the topic", seconds=PATIENCE_SECONDS)
        beat = read_heartbeat(stream.objects, paths.pipeline_control("video_qos", "heartbeat.json"))

    assert len(players) > 5
    assert beat is not None
    assert beat.gold_failures == ()
    numbers = [message["number"] for message in heard]
    assert numbers == sorted(set(numbers))
    assert stream.has_built(versions=2), "what came after the first build was built by itself too"
