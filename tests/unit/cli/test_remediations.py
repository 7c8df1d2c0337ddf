"""`deltaworks remediations`: list, hold and resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from deltaworks.cli import rules
from deltaworks.errors import ConfigError
from tests.commands import output_of
from tests.unit.remediation.remediation_harness import RemediationHarness
from tests.unit.remediation.traffic_server import running_director

run = partial(output_of, "remediations")


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemediationHarness]:
    with running_director(a=0.5, b=0.5) as director:
        harness = RemediationHarness(tmp_path, director)
        environment = SimpleNamespace(environment="tests", lake=harness.storage, remediations=(harness.spec,))
        monkeypatch.setattr(rules, "catalog", lambda: SimpleNamespace(environment=environment))
        yield harness


def test_a_held_remediation_declines_and_a_resumed_one_acts(harness: RemediationHarness) -> None:
    run("hold", "shift_cdn", "--reason", "moving by hand")
    record = harness.remediator().handle_notification(harness.fires("a"))
    assert record is not None
    assert "moving by hand" in record.reason
    declared, done = (
        json.loads(run("list", "--json"))["remediations"],
        json.loads(run("list", "--json"))["actions"],
    )
    assert "moving by hand" in declared[0]["held"]
    assert [item["state"] for item in done] == ["refused"]
    run("resume", "shift_cdn")
    record = harness.remediator().handle_notification(harness.fires("a", region="eu"))
    assert record is not None
    assert record.state == "called"


def test_an_undeclared_remediation_is_rejected(harness: RemediationHarness) -> None:
    with pytest.raises(ConfigError, match="REMEDIATION_UNKNOWN"):
        run("hold", "shift_cnd")
