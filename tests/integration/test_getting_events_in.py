"""What docs/getting-events-in.md shows is typed, on a file of sixty types: from a file to the right answer."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltaworks.specs.catalog import PROJECT_ROOT
from tests.webhook_events import webhooks

pytestmark = pytest.mark.integration
PAGE = PROJECT_ROOT / "docs" / "getting-events-in.md"
#: A cold start: Airflow reads its DAGs, and a JVM and its workers start.
ANSWER_SECONDS = 420.0
SHARED = ("include/deltaworks", "include/sandbox", "include/spark", "include/jars", "spark_jobs", "plugins", "dags")


def shown() -> list[list[str]]:
    """The commands of the page's first example, as words."""
    block = re.search(r"From a file of events to an answer:\n\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    return [shlex.split(line)[1:] for line in block[1].splitlines()]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A project on this checkout's code without any pipeline, in a folder of its own."""
    include = tmp_path / "include"
    (include / "environments").mkdir(parents=True)
    environment = (PROJECT_ROOT / "include" / "environments" / "local.yaml").read_text()
    (include / "environments" / "local.yaml").write_text(environment.partition("overrides:")[0])
    shutil.copytree(PROJECT_ROOT / "include" / "relays", include / "relays")
    for name in SHARED:
        (tmp_path / name).symlink_to(PROJECT_ROOT / name)
    yield tmp_path
    typed(["down"], tmp_path)


def typed(words: list[str], project: Path) -> subprocess.CompletedProcess[str]:
    """One command, typed in the project's folder."""
    variables = {"DELTAWORKS_PROJECT": str(project), "DELTAWORKS_HOME": str(project / "home")}
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DELTAWORKS_")} | variables
    command = [sys.executable, "-m", "deltaworks.cli", *words]
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    print(shlex.join(words), done.returncode, done.stdout[-2_000:], done.stderr[-2_000:])
    return done


@pytest.mark.timeout(900)
def test_the_page_leads_from_a_file_to_an_answer(project: Path) -> None:
    sent = webhooks(6_000)
    sent.write(project / "events.jsonl")
    *preparing, asking = shown()
    assert [words[0] for words in (*preparing, asking)] == ["pipelines", "up", "land", "sql"]

    for words in preparing:
        assert typed(words, project).returncode == 0

    answer: dict[str, int] = {}
    end = time.monotonic() + ANSWER_SECONDS
    while sum(answer.values()) < len(sent.events) and time.monotonic() < end:
        time.sleep(5)
        done = typed([*asking, "--json"], project)
        if done.returncode == 0:
            answer = {row["event_name"]: row["how_many"] for row in json.loads(done.stdout)}
    assert answer == dict(sent.by_type)
    (quarantined,) = json.loads(typed(["sql", "SELECT count(*) AS n FROM hooks.quarantine", "--json"], project).stdout)
    assert quarantined == {"n": 0}
    again = typed(["land", "hooks", "events.jsonl", "--json"], project)
    assert [(file["objects"], file["events"]) for file in json.loads(again.stdout)] == [(0, 6_000)]
