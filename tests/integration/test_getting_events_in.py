"""Runs the commands of docs/tutorials/first-pipeline.md: files, HTTP and Kafka give the documented results."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.testing import present, write_files
from tests.processes import run_process
from tests.webhook_events import webhooks

PAGE = PROJECT_ROOT / "docs" / "tutorials/first-pipeline.md"
#: A cold start: Airflow parses its DAGs, and a JVM and its workers start.
ANSWER_SECONDS = 420.0
SHARED = (
    *(f"include/{name}" for name in ("deltaworks", "collector", "sandbox", "generator", "spark", "jars")),
    *("spark_jobs", "plugins", "dags"),
)


def section(name: str) -> str:
    """Returns the page's text under a second-level heading."""
    return PAGE.read_text().partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def blocks(name: str, kind: str = "") -> list[str]:
    """Returns a section's code blocks in a language, or its commands."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", section(name), re.DOTALL | re.MULTILINE)
    return [text for language, text in fenced if language == kind]


def shown() -> list[list[str]]:
    """Returns the words of the commands in the page's first example."""
    return [shlex.split(line)[1:] for line in blocks("Files")[0].splitlines()]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A separate project on this checkout's code without pipelines."""
    include = tmp_path / "include"
    (include / "environments").mkdir(parents=True)
    environment = (PROJECT_ROOT / "include" / "environments" / "local.yaml").read_text()
    (include / "environments" / "local.yaml").write_text(environment.partition("overrides:")[0])
    shutil.copytree(PROJECT_ROOT / "include" / "relays", include / "relays")
    for name in SHARED:
        (tmp_path / name).symlink_to(PROJECT_ROOT / name)
    yield tmp_path
    typed(["down"], tmp_path)


def variables(project: Path) -> dict[str, str]:
    """Environment of a shell in the project's folder."""
    own = {"DELTAWORKS_PROJECT": str(project), "DELTAWORKS_HOME": str(project / "home")}
    return {key: value for key, value in os.environ.items() if not key.startswith("DELTAWORKS_")} | own


def typed(words: list[str], project: Path) -> subprocess.CompletedProcess[str]:
    """Runs one command in the project's folder."""
    command = [sys.executable, "-m", "deltaworks.cli", *words]
    done = run_process(command, cwd=project, env=variables(project), timeout=300)
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

    rows = answer(asking, project, until=lambda rows: sum(row["how_many"] for row in rows) >= len(sent.events))
    assert by_name(rows) == dict(sent.by_type)
    (quarantined,) = json.loads(typed(["sql", "SELECT count(*) AS n FROM hooks.quarantine", "--json"], project).stdout)
    assert quarantined == {"n": 0}
    again = typed(["land", "hooks", "events.jsonl", "--json"], project)
    assert [(file["objects"], file["events"]) for file in json.loads(again.stdout)] == [(0, 6_000)]


def answer(words: list[str], project: Path, *, until: Callable[[list[dict[str, Any]]], object]) -> list[dict[str, Any]]:
    """Waits for the final result of a query."""
    rows: list[dict[str, Any]] = []
    end = time.monotonic() + ANSWER_SECONDS
    while not until(rows) and time.monotonic() < end:
        time.sleep(5)
        done = typed([*words, "--json"], project)
        if done.returncode == 0:
            rows = json.loads(done.stdout)
    return rows


def by_name(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {row["event_name"]: row["how_many"] for row in rows}


@pytest.mark.timeout(1_200)
def test_events_that_are_posted_and_events_that_are_produced_are_in_the_tables(project: Path) -> None:
    (clicks, edge), (orders_of_kafka,) = blocks("HTTP", "yaml"), blocks("Kafka", "yaml")
    for declared in (clicks, orders_of_kafka):
        write_files(project, {f"include/pipelines/{declared.split()[1]}/pipeline.yaml": declared})
    write_files(project, {"include/collectors/edge.yaml": edge})
    sent = webhooks(300)
    sent.write(project / "events.jsonl")
    order = json.loads(re.findall(r"`(\{.*?\})`", section("Kafka"))[0])
    orders = [order | {"id": number, "total": number / 4} for number in range(200)]
    (project / "orders.jsonl").write_text("".join(json.dumps(event) + "\n" for event in orders))
    (adding,), (starting,), (one, many, asking) = (block.splitlines() for block in blocks("HTTP"))

    key = typed([*shlex.split(adding)[1:], "--key", "clicks-key"], project)
    assert yaml.safe_load(edge)["sources"]["clicks"]["keys"][0]["sha256"] in key.stdout, "the page's source has it"
    up = typed(shlex.split(starting)[1:], project)
    assert up.returncode == 0
    assert "Created topics: orders" in up.stdout
    collector = present(re.search(r"^Collector +(\S+)$", up.stdout, re.MULTILINE))
    for line, events in ((one, 1), (many, len(sent.events))):
        words = shlex.split(line.replace("ADDRESS", collector[1]))
        done = subprocess.run(words, cwd=project, capture_output=True, text=True, timeout=60, check=True)
        print(line, done.stdout[:500])
        assert json.loads(done.stdout) == {"success": True, "accepted": events, "kept": 0}
    (commands,), (program,) = blocks("Kafka"), blocks("Kafka", "python")
    again, produce, total = commands.splitlines()
    assert again == starting
    (project / "send.py").write_text(program)
    address = present(re.search(r"^Kafka +(\S+)$", up.stdout, re.MULTILINE))
    words = shlex.split(produce.replace("ADDRESS", address[1]))
    assert (words[0], words[-2:]) == ("python", ["<", "orders.jsonl"])
    with (project / "orders.jsonl").open("rb") as events_of_orders:
        subprocess.run([sys.executable, *words[1:-2]], cwd=project, stdin=events_of_orders, timeout=120, check=True)

    posted = sent.by_type + Counter(click=1)
    rows = answer(shlex.split(asking)[1:], project, until=lambda rows: by_name(rows) == posted)
    assert by_name(rows) == posted
    wanted = {"orders": 200, "total": sum(event["total"] for event in orders)}
    (row,) = answer(shlex.split(total)[1:], project, until=lambda rows: rows[:1] and rows[0]["orders"] == 200)
    assert {name: float(value) for name, value in row.items()} == wanted
    for name in ("clicks", "orders"):
        listed = typed(["quarantine", "list", name, "--json"], project)
        assert (listed.returncode, json.loads(listed.stdout)) == (0, [])
