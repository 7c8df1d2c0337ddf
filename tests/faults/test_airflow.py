"""Airflow's API server is away for a minute while a stream runs under Airflow's own processes.

With `[workers] max_failed_heartbeats` raised, as the embedded stack does, the stream does not notice. By Airflow's
default the task is killed: then nothing goes on writing, and the stream comes back when the server does.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deltaworks.local import environment
from deltaworks.local.environment import load_env
from deltaworks.local.home import StackHome
from deltaworks.local.stack import down, up
from deltaworks.local.supervision import Supervisor
from deltaworks.specs.catalog import load_catalog
from tests.integration.test_streams_under_airflow import BACK_SECONDS, Sender, Stage, _project, alive, ancestors, wait

OUTAGE_SECONDS = 75.0
API_SERVER = "airflow-api-server"


@contextmanager
def stage_under_airflow(folder: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str]) -> Iterator[Stage]:
    """The embedded stack with one small stream and a sender, Airflow's settings changed as given."""
    original = environment.airflow_settings

    def settings(*positional: Any, **named: Any) -> dict[str, str]:
        return {**original(*positional, **named), **changed}

    monkeypatch.setattr(environment, "airflow_settings", settings)
    project = _project(folder)
    before = dict(os.environ)
    os.environ["DELTAWORKS_PROJECT"] = str(project)
    home = StackHome.at(project / "home", project=project, dags_folder=project / "dags")
    try:
        up(home=home)
        load_env(home)
        catalog = load_catalog("local", root=project)
        yield Stage(home, catalog, Sender(catalog))
    finally:
        down(home=home, grace_seconds=20)
        os.environ.clear()
        os.environ.update(before)


@pytest.mark.parametrize("off", [{}, {"AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS": "3"}], ids=["protected", "without"])
def test_a_stream_outlives_an_outage_of_the_api_server(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tell_line: Callable[..., None],
    off: dict[str, str],
) -> None:
    with stage_under_airflow(tmp_path, monkeypatch, off) as stage:
        before = stage.await_progress(len(stage.rows()))
        family = ancestors(before.pid)
        supervisor = Supervisor(stage.home)
        supervisor.stop([API_SERVER], seconds=30)
        time.sleep(OUTAGE_SECONDS)
        outlived = alive(family["driver"])
        left = [name for name in ("driver", "jvm") if alive(family[name])]
        landed = len(stage.rows())
        supervisor.start(API_SERVER)
        back = time.monotonic()
        after = stage.await_progress(landed)
        recovery = time.monotonic() - back
        sent = stage.sender.close()
        wait(lambda: len(stage.rows()) >= sent, f"not all of {sent} events arrived", BACK_SECONDS)
        counts = Counter(row["number"] for row in stage.rows())

    lost, doubled = sent - len(counts), counts.total() - len(counts)
    tell_line(
        "65 API server away",
        "WITHOUT max_failed_heartbeats" if off else "protected",
        f"{OUTAGE_SECONDS:.0f} s",
        f"ids {sent}",
        f"lost {lost}",
        f"doubled {doubled}",
        f"recovery {recovery:.1f} s",
        "the stream went on" if outlived else f"the task was ended, {len(left)} processes left",
    )
    assert (lost, doubled) == (0, 0)
    assert outlived == (not off)
    assert len(left) in (0, 2)
    assert (after.pid == before.pid) == (not off)
