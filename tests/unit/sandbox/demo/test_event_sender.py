"""A steady rate is measured once streams and relays poll for input; processes that do not are named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StreamState
from deltaworks.control.objects import open_objects
from deltaworks.errors import TransientError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from sandbox.demo import event_sender
from sandbox.demo.data_settings import DataSettings
from sandbox.demo.event_sender import EventSender
from sandbox.stack.home import StackHome
from tests.heartbeats import put_heartbeat
from tests.unit.specs.conftest import ENVIRONMENT, PIPELINE, write_project


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_sender, "_PATIENCE_SECONDS", 0.0)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    environment = ENVIRONMENT.replace("file:///lake", f"file://{tmp_path}/lake")
    pipeline = PIPELINE.replace("pipeline: shop", "pipeline: edits")
    root = write_project(tmp_path / "project", environment=environment, pipeline=pipeline)
    (root / "include" / "pipelines" / "shop").rename(root / "include" / "pipelines" / "edits")
    return load_catalog(root=root)


def beat(catalog: Catalog, folder: str, state: StreamState) -> None:
    put_heartbeat(open_objects(catalog.environment.lake), folder, "edits", at="2026-01-01T00:00:00Z", state=state)


def sending_of(catalog: Catalog, tmp_path: Path) -> EventSender:
    what = DataSettings(games=None, engagement=None, edits=tmp_path / "edits.json", landing_seconds=0)
    home = StackHome.at(tmp_path / "home", project=tmp_path)
    return EventSender(
        data_settings=what, catalog=catalog, home=home, bootstrap=None, collector_url=None, print_line=lambda line: None
    )


@pytest.mark.parametrize(
    ("stream", "relay", "late"),
    [
        ("starting", "idle", "stream edits"),
        ("failed", "idle", "stream edits"),
        ("idle", "starting", "relay landing"),
        ("starting", None, "stream edits, relay landing"),
    ],
)
def test_who_does_not_look_for_events_is_named(
    catalog: Catalog,
    tmp_path: Path,
    stream: StreamState,
    relay: StreamState | None,
    late: str,
) -> None:
    beat(catalog, paths.pipeline_control("edits"), stream)
    if relay is not None:
        beat(catalog, paths.relay_control("landing"), relay)

    with pytest.raises(TransientError, match=rf"INGEST_TIMEOUT.*poll for events: {late}\."):
        sending_of(catalog, tmp_path).await_streams()


def test_streams_and_relays_that_look_for_events_are_waited_for_no_longer(catalog: Catalog, tmp_path: Path) -> None:
    beat(catalog, paths.pipeline_control("edits"), "running")
    beat(catalog, paths.relay_control("landing"), "idle")
    said: list[str] = []

    dataclasses.replace(sending_of(catalog, tmp_path), print_line=said.append).await_streams()

    assert said == ["waiting for stream edits, relay landing"]
