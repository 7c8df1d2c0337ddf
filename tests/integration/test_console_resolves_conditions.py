"""Twelve conditions under Airflow's own processes: the overview shows each with its next step, and its action or
command resolves it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.clock import iso_now, utc_now
from deltaworks.control.health.heartbeat import Heartbeat, StopFlag, read_heartbeat
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.lease import LeaseRecord
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.erasure import Erasures
from deltaworks.control.summaries.stream import read_recent
from deltaworks.sources.objects.file_event_log import file_events_key
from deltaworks.specs.dag_ids import HEALTH_DAG
from deltaworks.testing import present, table_rows
from sandbox.demo.landing_sink import landing_sink
from sandbox.servers.landing import LAKE_BUCKET
from sandbox.stack.environment import process_environment
from tests.integration.airflow_harness import (
    BACK_SECONDS,
    PER_DAY,
    TOPIC,
    AirflowHarness,
    alive,
    ancestors,
    clicks_project,
    running_stack,
    wait,
)
from tests.integration.airflow_people import People
from tests.integration.console_pages import Console, console_of
from tests.processes import run_process

pytestmark = pytest.mark.timeout(900)

DECLARED = """
pipeline: clicks
description: What the test sends.
owner: tests
source: {kind: s3_sqs, relay: landing, bucket: deltaworks-landing, prefix: clicks/}
event:
  name: {path: name}
  time: {path: at, unit: epoch_seconds}
  id: number
privacy:
  namespace: people
  subject: [person]
  fields: [{path: person, action: token, as: player}]
tables:
  - name: clicks
    when: {name: click}
    columns: [{name: number, path: number, type: long}, {name: person, path: person, type: string}]
  - {name: bought, when: {name: bought}, columns: [{name: kind, path: kind, type: string, required: true}]}
stream: {trigger_seconds: 1, lease_ttl_seconds: 6}
health: {stale_seconds: 20, start_seconds: 20, restarts_per_hour: 0, quarantined_events_min: 20, retention_hours: 48}
maintenance: {optimize: false}
gold:
  lag: 7d
  tables: [{name: per_day, sql: per_day.sql, reads: [clicks], partition_by: event_date, checks: {max_age_minutes: 60}}]
"""
STREAM, FEW_SECONDS, TWO_MINUTES = "stream clicks", 90.0, 120.0


@dataclass
class Lake(AirflowHarness):
    """A project whose events land only when a test lands them."""

    landed: int = 0

    @property
    def objects(self) -> ObjectStore:
        return open_objects(self.catalog.environment.lake)

    @property
    def declaration(self) -> Path:
        return self.home.project / "include" / "pipelines" / "clicks" / "pipeline.yaml"

    def edit(self, old: str, new: str) -> None:
        """Edits the declaration."""
        text = self.declaration.read_text()
        assert old in text
        self.declaration.write_text(text.replace(old, new))

    def land(self, count: int = 10, *, name: str = "click", **fields: Any) -> None:
        """Lands an object with this many events."""
        first = self.landed
        events = [
            {"name": name, "number": first + i, "at": 1_700_000_000 + first + i, "person": f"p{i}", **fields}
            for i in range(count)
        ]
        put = landing_sink(self.catalog.environment.landing)
        put(f"clicks/2023/11/14/22/{first:08d}.json", "\n".join(map(json.dumps, events)).encode())
        self.landed += count

    def numbers(self, table: str = "clicks", column: str = "number") -> list[Any]:
        """Returns a column of a table."""
        from deltaworks.tables.lake import Lake as Tables

        return [row[column] for row in table_rows(Tables(self.catalog.environment.lake), "clicks", table, column)]

    def lands(self) -> None:
        """Lands an object and waits for its rows."""
        self.land()
        last = self.landed - 1
        wait(lambda: last in self.numbers(), "nothing lands", BACK_SECONDS)

    def file(self, key: str) -> Path:
        """Returns the local path of a file in the lake."""
        return self.home.lake / LAKE_BUCKET / key

    def judged(self, people: People) -> None:
        """Runs the health check now instead of within a minute."""
        run_id = f"now-{iso_now()}"
        people.trigger(HEALTH_DAG, run_id=run_id)
        people.wait_for_run(HEALTH_DAG, run_id, timeout_seconds=BACK_SECONDS)

    def keep_undelivered(self) -> None:
        """Adds a dead-letter queue to the subscription, which the check requires."""
        sqs, sns = self._aws("sqs"), self._aws("sns")
        dead = sqs.create_queue(QueueName="people-dead")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        (subscription,) = sns.list_subscriptions_by_topic(TopicArn=TOPIC)["Subscriptions"]
        sns.set_subscription_attributes(
            SubscriptionArn=subscription["SubscriptionArn"],
            AttributeName="RedrivePolicy",
            AttributeValue=json.dumps({"deadLetterTargetArn": arn}),
        )

    def command(self, words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command on the stack's machine."""
        program, *arguments = shlex.split(words)
        assert program == "deltaworks"
        return run_process(
            [sys.executable, "-m", "deltaworks.cli", *arguments],
            env=process_environment(self.home),
            cwd=self.home.run,
            timeout=300,
        )


@dataclass
class _NoSender:
    """Replaces the sender: nothing lands automatically."""

    def close(self) -> int:
        return 0


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    project = clicks_project(tmp_path_factory.mktemp("project"))
    (project / "include" / "pipelines" / "clicks" / "pipeline.yaml").write_text(DECLARED)
    (project / "include" / "pipelines" / "clicks" / "per_day.sql").write_text(PER_DAY)
    with running_stack(project) as (home, catalog):
        lake = Lake(home, catalog, _NoSender())  # type: ignore[arg-type]
        lake.lands()
        yield lake


@pytest.fixture(scope="module")
def people(lake: Lake) -> Iterator[People]:
    with lake.people() as people:
        yield people


@pytest.fixture(scope="module")
def console(people: People) -> Iterator[Console]:
    with console_of(people) as console:
        yield console


def command_in(text: str) -> str:
    """Returns the command in a next step."""
    named = re.search(r"`(deltaworks [^`]*)`", text)
    assert named is not None, text
    return named[1]


def test_an_invalid_declaration_is_shown_by_file_and_key_until_it_is_corrected(lake: Lake, console: Console) -> None:
    lake.edit("owner: tests", "ownr: tests")

    trouble = console.await_trouble("INVALID_DECLARATION", subject=STREAM)
    assert "pipeline.yaml" in trouble.detail
    assert "ownr" in trouble.detail
    assert "owner" in trouble.detail + trouble.next_step
    assert not trouble.act.startswith("/actions/"), "no button mends a file"

    lake.edit("ownr: tests", "owner: tests")
    console.await_end(trouble)


def test_a_failing_channel_recovers_and_waiting_notifications_are_sent(
    lake: Lake, people: People, console: Console
) -> None:
    lake.edit("owner: tests", "ownr: tests")
    lake.judged(people)
    trouble = console.await_trouble("CHANNEL_FAILING", subject="people")
    check = command_in(trouble.next_step)
    before = lake.command(check)
    assert before.returncode != 0
    assert "people" in before.stdout + before.stderr
    lake.edit("ownr: tests", "owner: tests")

    assert lake.queue
    lake.keep_undelivered()
    after = lake.command(check)

    assert after.returncode == 0, after.stdout + after.stderr
    lake.judged(people)
    console.await_end(trouble)
    wait(lambda: ("STREAM_UNHEALTHY", STREAM, "raised") in lake.told(), "what waited was not sent", FEW_SECONDS)


def test_stale_gold_is_built(lake: Lake, people: People, console: Console) -> None:
    late = (utc_now() - timedelta(hours=3)).isoformat()
    lake.objects.put(paths.gold_state("clicks", "per_day"), json.dumps({"at": late}).encode())
    recent = present(read_recent(lake.objects, "clicks"))
    landed = (utc_now() - timedelta(hours=2)).isoformat()
    older = recent.replace(batches=tuple(batch.replace(at=landed) for batch in recent.batches))
    lake.objects.put(paths.recent_batches("clicks"), older.encode())
    lake.judged(people)
    trouble = console.await_trouble("GOLD_STALE", subject="clicks.per_day")

    console.press(trouble.act)

    assert sum(lake.numbers("per_day", "clicks")) == len(lake.numbers())
    lake.judged(people)
    console.await_end(trouble)


def test_a_failed_maintenance_task_is_run_by_its_form(lake: Lake, people: People, console: Console) -> None:
    torn = paths.reader_record("clicks", "clicks", "training")
    lake.objects.put(torn, b'{"torn')
    people.trigger("clicks__maintenance", run_id="night", conf={"dry_run": False})
    trouble = console.await_trouble("JOB_FAILED", subject="clicks__maintenance.vacuum_tables", seconds=RUN_AND_RETRIES)
    assert "READER_UNREADABLE" in trouble.detail
    lake.objects.delete(torn)
    people.wait_for_run("clicks__maintenance", "night", timeout_seconds=BACK_SECONDS)

    console.press(trouble.act)

    console.await_end(trouble)


RUN_AND_RETRIES = 400.0


def test_quarantined_rows_are_landed_once_they_fit_and_the_alert_resolves(lake: Lake, console: Console) -> None:
    lake.land(60, name="bought")
    trouble = console.await_trouble("ROWS_QUARANTINED", subject=STREAM)
    assert lake.numbers("bought", "kind") == []
    lake.edit("{name: kind, path: kind, type: string, required: true}", "{name: kind, path: kind, type: string}")

    console.press(trouble.act)

    assert lake.numbers("bought", "kind") == [None] * 60
    console.await_end(trouble)


def test_a_deleted_data_file_is_told_by_name_and_its_rows_come_back(
    lake: Lake, people: People, console: Console
) -> None:
    before = sorted(lake.numbers())
    files = lake.file(paths.table("clicks", "clicks")).rglob("*.parquet")
    lost = max((path for path in files if "_delta_log" not in path.parts), key=lambda path: path.stat().st_mtime_ns)
    lost.unlink()
    lake.judged(people)
    trouble = console.await_trouble("DATA_FILE_MISSING", subject="clicks.clicks")
    assert lost.name in trouble.detail

    recovered = lake.command(f"{command_in(trouble.next_step)} --max-rows {len(before)} --no-dry-run")

    assert sorted(lake.numbers()) == before, recovered.stdout + recovered.stderr
    lake.judged(people)
    console.await_end(trouble)


def test_a_suspended_table_is_resumed_and_caught_up(lake: Lake, console: Console) -> None:
    before = len(lake.numbers("bought", "kind"))
    log = lake.file(paths.table("clicks", "bought")) / "_delta_log"
    newest = max(int(path.stem) for path in log.glob("*.json"))
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": ["fromTomorrow"]}
    poison = log / f"{newest + 1:020d}.json"
    info = {"timestamp": 1_700_000_000_000, "operation": "SET TBLPROPERTIES", "userMetadata": "{}"}
    poison.write_text(f"{json.dumps({'commitInfo': info})}\n{json.dumps({'protocol': protocol})}\n")
    lake.land(5, name="bought", kind="a book")
    trouble = console.await_trouble("TABLE_SUSPENDED", subject="clicks.bought")
    lake.lands()
    poison.unlink()

    console.press(trouble.act)

    wait(lambda: len(lake.numbers("bought", "kind")) == before + 5, "it has not caught up", FEW_SECONDS)
    console.await_end(trouble)
    assert lake.numbers("bought", "kind").count("a book") == 5


def epoch(lake: Lake) -> int:
    beat = lake.beat()
    return 0 if beat is None else beat.epoch


def works(lake: Lake, beyond: int) -> bool:
    beat = lake.beat()
    return beat is not None and beat.epoch > beyond and beat.state in ("running", "idle")


def test_a_hung_driver_is_restarted_and_its_successor_continues(lake: Lake, console: Console) -> None:
    beat = lake.await_progress(0)
    family = ancestors(beat.pid)
    for name in ("jvm", "driver"):
        os.kill(family[name], signal.SIGSTOP)
    try:
        trouble = console.await_trouble("HEARTBEAT_STALE", subject=STREAM)

        console.press(trouble.act, reason="it hangs")

        wait(lambda: works(lake, beat.epoch), "the stream did not come back", BACK_SECONDS)
    finally:
        for name in ("jvm", "driver"):
            if alive(family[name]):
                os.kill(family[name], signal.SIGKILL)
    lake.lands()
    console.await_end(trouble)
    assert works(lake, beat.epoch)


class Intruder:
    """Takes over the stream's lease and keeps it."""

    def __init__(self, objects: ObjectStore, key: str) -> None:
        self._objects, self._key = objects, key
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def __enter__(self) -> Intruder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._write(beat=0, released=True)

    def _hold(self) -> None:
        beat = 0
        while not self._over.wait(1.0):
            beat += 1
            self._write(beat=beat, released=False)

    def _write(self, *, beat: int, released: bool) -> None:
        stored = self._objects.get(self._key)
        held = LeaseRecord.decode_or_none(stored.data) if stored else None
        mine = held is not None and held.owner == "intruder"
        record = LeaseRecord(
            owner="intruder",
            epoch=(held.epoch if held else 0) + (0 if mine else 1),
            renewal=beat,
            released=released,
            host="elsewhere",
            pid=1,
            run="elsewhere",
            written_at=iso_now(),
            ttl_seconds=6,
        )
        self._objects.put(self._key, record.encode())


def test_a_lost_lease_is_shown_and_the_stream_restarts_once_it_is_free(lake: Lake, console: Console) -> None:
    before = epoch(lake)
    with Intruder(lake.objects, paths.lease(paths.pipeline_control("clicks"))):
        # The former owner may not write the heartbeat, and the new one does not write any.
        trouble = console.await_trouble("LEASE_LOST", "LEASE_HELD", "HEARTBEAT_STALE", subject=STREAM)

    console.press(trouble.act, reason="the other one has ended")

    wait(lambda: works(lake, before), "the stream did not come back", BACK_SECONDS)
    lake.lands()
    console.await_end(trouble)
    assert works(lake, before)


def test_a_failing_source_is_shown_and_the_stream_is_retried_after_its_repair(lake: Lake, console: Console) -> None:
    console.press("/actions/control_relay/landing?verb=stop", reason="its log is damaged")
    before, log = epoch(lake), lake.file(file_events_key("landing")) / "_delta_log"
    newest = max(log.glob("*.json"))
    damaged = log / f"{int(newest.stem) + 1:020d}.json"
    damaged.write_text("this is no commit\n")
    trouble = console.await_trouble("LOG_DAMAGED", subject=STREAM, seconds=TWO_MINUTES)
    assert "_delta_log" in trouble.detail
    assert "restore its" in trouble.next_step
    damaged.unlink()

    console.press(trouble.act, reason="its log is whole again")
    console.press("/actions/control_relay/landing?verb=start")

    wait(lambda: works(lake, before), "the stream did not come back", BACK_SECONDS)
    lake.lands()
    console.await_end(trouble)


def relay_beat(lake: Lake) -> Heartbeat:
    return present(read_heartbeat(lake.objects, paths.heartbeat(paths.relay_control("landing"))))


def test_a_dead_relay_is_restarted(lake: Lake, console: Console) -> None:
    # The limit of automatic restarts per hour is reached, so only a person can restart.
    taken = [(utc_now() - timedelta(minutes=minutes)).isoformat() for minutes in range(3)]
    lake.objects.put(f"{paths.relay_control('landing')}/restarts.json", json.dumps({"at": taken}).encode())
    before = relay_beat(lake)
    os.kill(before.pid, signal.SIGSTOP)
    try:
        trouble = console.await_trouble("HEARTBEAT_STALE", subject="relay landing", seconds=300)

        console.press(trouble.act, reason="it hangs")

        wait(lambda: relay_beat(lake).pid != before.pid, "the relay did not come back", BACK_SECONDS)
    finally:
        if alive(before.pid):
            os.kill(before.pid, signal.SIGKILL)
    lake.lands()
    console.await_end(trouble)
    assert relay_beat(lake).pid != before.pid


def test_a_source_that_expires_is_mended_by_its_retention(lake: Lake, people: People, console: Console) -> None:
    console.press("/actions/control/clicks?verb=stop", reason="for the weekend")
    lake.edit("retention_hours: 48", "retention_hours: 0.01")

    def looked() -> bool:
        lake.judged(people)
        return any((one.cause, one.subject) == ("DATA_LOSS_NEAR", STREAM) for one in console.troubles())

    wait(looked, "nobody says that the source expires", BACK_SECONDS)
    trouble = console.await_trouble("DATA_LOSS_NEAR", subject=STREAM)
    assert "retention" in trouble.next_step
    assert StopFlag(lake.objects, paths.stop_request(paths.pipeline_control("clicks"))).read() is not None

    lake.edit("retention_hours: 0.01", "retention_hours: 48")
    lake.judged(people)

    console.await_end(trouble)
    console.press("/actions/control/clicks?verb=start")
    lake.lands()


def test_an_erasure_that_is_due_is_brought_on_by_the_command_that_its_page_names(
    lake: Lake, people: People, console: Console
) -> None:
    rows = len(lake.numbers())
    received = (utc_now() - timedelta(days=22)).date()
    received_now = lake.command(
        f"deltaworks privacy erase people --kind player --value p1 --received {received} --no-dry-run"
    )
    assert received_now.returncode == 0, received_now.stdout + received_now.stderr
    lake.judged(people)
    trouble = console.await_trouble("ERASURE_DUE", subject=_request(lake), seconds=FEW_SECONDS)
    command = command_in(trouble.next_step)
    assert command in console.page(trouble.act).replace("&#34;", '"')

    _until(lambda: "purged" in _state(lake), lambda: (lake.lands(), lake.command(command)))

    assert len(lake.numbers()) < rows + (lake.landed - rows)
    lake.judged(people)
    console.await_end(trouble)


def _request(lake: Lake) -> str:
    (request,) = Erasures(lake.objects, "people").all_requests()
    return f"people {request.request_id}"


def _state(lake: Lake) -> str:
    (request,) = Erasures(lake.objects, "people").all_requests()
    return request.state


def _until(condition: Callable[[], bool], again: Callable[[], Any]) -> None:
    for _ in range(6):
        if condition():
            return
        again()
    assert condition()


def test_nothing_is_held_back_in_the_end(lake: Lake, console: Console) -> None:
    assert not PipelineHome(lake.objects, "clicks").held.read()
    assert [one for one in console.troubles() if one.subject == STREAM] == []
