"""Checking many streams reads the storage concurrently and calls Airflow rarely."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from deltaworks.alerts.raising import open_subjects, raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.health.heartbeat import HeartbeatWriter
from deltaworks.control.health.limits import HealthLimits
from deltaworks.control.health.report import Subject, check_subject, check_subjects
from deltaworks.control.objects import LocalObjects, StoredObject

SUBJECTS = [
    Subject("stream", f"s{number}", paths.pipeline_control(f"s{number}"), HealthLimits()) for number in range(8)
]


class BarrierObjects(LocalObjects):
    """Returns no heartbeat until several have been requested."""

    def __init__(self, root: Path, *, parties: int) -> None:
        super().__init__(root)
        self._gate = threading.Barrier(parties, timeout=10)

    def get(self, key: str) -> StoredObject | None:
        if key.endswith("heartbeat.json"):
            self._gate.wait()
        return super().get(key)


def write_heartbeat(objects: LocalObjects, name: str, **changes: str) -> None:
    key = paths.heartbeat(paths.pipeline_control(name))
    writer = HeartbeatWriter(objects, key, pipeline=name, trigger_seconds=60)
    objects.put(key, json.dumps(writer.current.model_dump() | {"state": "running"} | changes).encode())


def test_concurrent_checks_equal_single_checks(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    for subject in SUBJECTS[:5]:
        write_heartbeat(objects, subject.name)
    objects.put(paths.heartbeat(SUBJECTS[5].control), b"torn")

    together = check_subjects(SUBJECTS, BarrierObjects(tmp_path, parties=len(SUBJECTS)))

    alone = [check_subject(subject, objects) for subject in SUBJECTS]
    assert [(item.subject, item.verdict.cause) for item in together] == [
        (item.subject, item.verdict.cause) for item in alone
    ]


def test_paused_dags_are_looked_up_for_every_subject(tmp_path: Path) -> None:
    objects, questions = LocalObjects(tmp_path), list[str]()
    write_heartbeat(objects, "s0")
    write_heartbeat(objects, "s1", state="failed")

    def paused(dag_id: str) -> bool:
        questions.append(dag_id)
        return True

    first, second, third = check_subjects(SUBJECTS[:3], objects, paused=paused)

    assert questions == ["s0__stream", "s1__stream", "s2__stream"]
    assert first.verdict.cause == "PAUSED_WHILE_RUNNING"
    assert (second.verdict.cause, third.verdict.cause) == ("PAUSED_WITHOUT_STOP", "PAUSED")


@pytest.mark.parametrize("cause", ["JOB_OVERDUE", "GOLD_STALE"])
def test_open_alerts_of_a_cause_are_listed_by_subject(tmp_path: Path, cause: str) -> None:
    objects = LocalObjects(tmp_path)
    for subject in ("games__gold", "edits__gold"):
        raise_alert(objects, cause=cause, subject=subject, summary="late")
    raise_alert(objects, cause="RESTARTS_EXHAUSTED", subject="stream games", summary="again and again")
    resolve_alert(objects, cause=cause, subject="edits__gold", summary="well")

    assert open_subjects(objects, cause) == {"games__gold"}
