"""Notifications travel from a firing rule over SNS and SQS to the traffic server."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from deltaworks.alerts.channels.senders import publish, sns_message
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.health.report import subjects
from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError
from deltaworks.remediation.process import RemediationProcess, find_remediation
from deltaworks.sources.objects.relay.queue import NotificationQueue
from deltaworks.specs.catalog import Catalog
from deltaworks.testing import environment_spec
from tests.unit.alerts.aws_harness import Aws
from tests.unit.remediation.remediation_harness import RemediationHarness
from tests.unit.remediation.traffic_server import Director


class Wired:
    """A remediation with a queue subscribed to a topic, and a process run step by step."""

    def __init__(self, root: Path, aws: Aws, director: Director) -> None:
        self.aws, self.queue, self.topic = aws, aws.queue(), aws.topic()
        aws.subscribe(self.topic, self.queue)
        self.harness = RemediationHarness(root, director, queue_url=self.queue)
        self.harness.now = utc_now()
        remediations = (self.harness.spec,)
        self.environment = environment_spec(
            root, lake=self.harness.storage, messaging=aws.messaging, remediations=remediations
        )

    def process(self, **more: Any) -> RemediationProcess:
        queue = NotificationQueue(self.aws.messaging, self.queue, wait_seconds=1, visibility_seconds=30)
        return RemediationProcess(
            self.environment, self.harness.spec, queue=queue, remediator=self.harness.remediator(), **more
        )

    def waiting(self) -> int:
        return sum(NotificationQueue(self.aws.messaging, self.queue, wait_seconds=1).approximate_counts())


@pytest.fixture
def wired(tmp_path: Path, aws: Aws, director: Director) -> Wired:
    return Wired(tmp_path, aws, director)


def test_a_rule_that_fires_moves_weight_once_though_its_notice_comes_twice(wired: Wired) -> None:
    notification = wired.harness.fires("a")
    for _ in range(2):
        publish(wired.aws.client("sns"), sns_message(wired.topic, notification))
    process = wired.process()
    for _ in range(2):
        process.run_once()
    assert wired.harness.director.weights == {"a": 0.3, "b": 0.7}
    assert len(wired.harness.director.moves) == 1
    assert wired.waiting() == 0


def test_a_message_that_says_nothing_is_kept_aside(wired: Wired) -> None:
    bodies = ["no json", "[]", '{"id": "../../x", "kind": "raised"}', '{"Message": "x", "TopicArn": "t"}']
    assert not NotificationQueue(wired.aws.messaging, wired.queue).send(bodies)
    process = wired.process()
    process.run_once()
    assert process.counts.unusable == len(bodies)
    folder = paths.remediation_control("shift_cdn") + "/unusable/"
    assert len(wired.harness.objects.list(folder)) == len(bodies)
    assert wired.waiting() == 0


def test_a_message_that_could_not_be_handled_yet_comes_again(wired: Wired) -> None:
    notification = wired.harness.fires("a")
    publish(wired.aws.client("sns"), sns_message(wired.topic, notification))
    wired.harness.director.silent_reads = 1
    process = wired.process()
    with pytest.raises(Exception, match="TRAFFIC_UNREACHABLE"):
        process.run_once()
    assert wired.waiting() == 1
    process.run_once()
    assert wired.harness.record(notification).state == "called"


def test_a_process_ends_by_its_flag_and_is_watched(wired: Wired) -> None:
    folder = paths.remediation_control("shift_cdn")
    StopFlag(open_objects(wired.harness.storage), paths.stop_request(folder)).set(by="me", reason="over")
    counts = wired.process().run()
    assert counts.messages == 0
    catalog = Catalog(wired.environment, {}, {}, Path())
    assert [subject.dag_id for subject in subjects(catalog)] == ["shift_cdn__remediation"]


def test_a_name_that_is_not_declared_gets_the_nearest(wired: Wired) -> None:
    catalog = Catalog(wired.environment, {}, {}, Path())
    with pytest.raises(ConfigError, match="shift_cdn"):
        find_remediation(catalog, "shift_cnd")
    empty = dataclasses.replace(catalog, environment=wired.environment.model_copy(update={"remediations": ()}))
    with pytest.raises(ConfigError, match="REMEDIATION_UNKNOWN"):
        find_remediation(empty, "shift_cdn")
