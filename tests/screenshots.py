"""`make screenshots`: captures every console page in light and dark mode, with records like the demo's, into docs.

Captures the registered pages that need no name except a pipeline's. The records are written by product code.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import Request

from deltaworks.alerts.deadman import write_health_heartbeat
from deltaworks.alerts.raising import raise_alert
from deltaworks.console.application import build_console
from deltaworks.console.cached_objects import CachedObjects, CatalogCache
from deltaworks.console.console import Console
from deltaworks.console.host import PendingApproval, Person
from deltaworks.console.pages.registry import PAGES
from deltaworks.control import paths
from deltaworks.control.clock import iso_now, utc_now
from deltaworks.control.health import report as health_report
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.health.throughput import EventTotals, Throughput
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.erasure import GRANTED_STATES, Erasures
from deltaworks.control.records.held_tables import HeldTable
from deltaworks.control.summaries.stream import BatchSummary, StreamSummaryWriter
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.project import load_catalog
from tests.console_harness import FakeActions, FakeAuthenticator, ago, person, write_process_heartbeat
from tests.dags.airflow_project import write_project
from tests.unit.console.actions.test_fields import params_of
from tests.unit.control.records.recorded_summaries import AT, SUMMARIES, TABLE

CHROMIUM = shutil.which("chromium")
WIDTH, HEIGHT = 1280, 800
#: Pages of pipelines other than games, and page parts that read its tables, which do not exist here.
COLD = ("mutations", "cascade", "samples", "history", "certificates", "dashboards", "widgets")
NAMESPACE = "players"
PRIVACY = f"privacy: {{namespace: {NAMESPACE}, fields: [{{path: secret, action: drop}}]}}\n"
#: Captured in addition to the registered pages.
MORE = {"act": "/actions/control/games?verb=restart&reason=a+new+key", "restore": "/actions/restore/games?table=events"}


class SinglePersonAuthenticator(FakeAuthenticator):
    """Identifies every request as one person."""

    @property
    def identify(self) -> Any:
        async def of(request: Request) -> Person:
            return self.people["ada"]

        return of


def write_records(objects: ObjectStore) -> None:
    """Writes records of a stream with a held table, a stopped stream, a relay with dead letters, and their alerts."""
    held = HeldTable(
        table="purchase", reason="suspended", since_batch=790, at=iso_now(), condition="TABLE_SCHEMA_DIFFERS"
    )
    objects.put(paths.held_table("games", "purchase"), held.encode())
    write_process_heartbeat(
        objects,
        paths.pipeline_control("games"),
        "games",
        rows=1_284_000,
        quarantined=312,
        backlog_files=3,
        oldest_pending_at=ago(22),
        retention_seconds=4 * 86_400.0,
        held=(held.summary(),),
    )
    StopFlag(objects, paths.stop_request(paths.pipeline_control("edits"))).set(by="ada", reason="upgrade of the broker")
    write_process_heartbeat(objects, paths.pipeline_control("edits"), "edits", state="ended", written_at=ago(7200))
    write_process_heartbeat(
        objects, paths.relay_control("landing"), "landing", rows=40_200, backlog_files=2, dead_letters=4
    )
    throughput = Throughput()
    for minutes in range(0, 600, 5):
        total = EventTotals(events=11_000 + 40 * minutes, rows=10_900, quarantined=minutes % 30, reasons={})
        throughput = throughput.with_batch(utc_now() - timedelta(minutes=minutes), total)
    objects.put(paths.throughput(paths.pipeline_control("games")), throughput.encode())
    for cause, subject, summary in (
        ("TABLE_SUSPENDED", "games.purchase", "Its schema differs from the declaration since batch 790."),
        ("JOB_FAILED", "games__maintenance.vacuum_tables", "VACUUM would delete 41,200 files; 20,000 are the bound."),
    ):
        raise_alert(objects, cause=cause, subject=subject, summary=summary)
    write_health_heartbeat(objects, run="r", checked=3, unhealthy=1)
    write_summaries(objects)
    write_batches(objects)
    write_erasures(objects)


def write_erasures(objects: ObjectStore) -> None:
    """Writes erasure requests: a certified one, one near its deadline, and a new one."""
    erasures = Erasures(objects, NAMESPACE)
    for name, days_ago, states in (("e1", 24, GRANTED_STATES[1:]), ("e2", 28, GRANTED_STATES[1:4]), ("e3", 0, ())):
        received = utc_now() - timedelta(days=days_ago)
        terms = {"purge_by": received + timedelta(days=21), "deadline_at": received + timedelta(days=30)}
        request = erasures.create(f"{name}-{received:%Y%m%d}", received_at=received, digest="d", by="dpo", **terms)
        for state in states:
            request = erasures.record_state(request, state, by="erase")


def write_summaries(objects: ObjectStore) -> None:
    """Writes the summaries of streams and maintenance runs."""
    orders = TABLE.model_copy(update={"name": "purchase", "score": 88, "small_files": 1, "files": 4, "tonight": None})
    changes = {"tables_summary": {"tables": (TABLE, orders)}}
    for name, key in {
        "tables_summary": paths.tables_summary("games"),
        "nights_summary": paths.nights_summary("games"),
        "quarantine_summary": paths.quarantine_summary("games"),
    }.items():
        data = SUMMARIES[name].model_copy(update=changes.get(name, {})).encode()
        days = {AT: iso_now(), "2026-01-02": f"{utc_now():%Y-%m-%d}", "2026-01-01": ago(86_400)[:10]}
        for recorded, shown in days.items():
            data = data.replace(recorded.encode(), shown.encode())
        objects.put(key, data)


def write_batches(objects: ObjectStore) -> None:
    """Writes 36 hours of batches: more rows by day than by night, and one hour in which the lake did not answer."""
    writer, now, minutes = StreamSummaryWriter(objects, "games"), utc_now(), range(36 * 60, -1, -2)
    for number, back in enumerate(minutes, start=813 - len(minutes)):
        at = now - timedelta(minutes=back)
        if 150 < back < 190:
            continue
        rows = round(9_000 + 4_000 * math.sin((at.hour * 60 + at.minute) / 1440 * math.tau) + 600 * math.sin(number))
        waited = 9.0 + 3 * math.cos(number) + max(0.0, 40 - (150 - back)) * 50 * (back <= 150)
        writer.add(
            BatchSummary(
                batch_id=number,
                at=at.isoformat(),
                rows=rows,
                quarantined=number % 5,
                files=19,
                bytes=rows * 90,
                tables=31,
                prepare_seconds=1.5 + rows / 9_000,
                commit_seconds=0.8,
                complete_seconds=0.2,
                backlog_files=round(waited / 3),
                oldest_pending_seconds=round(waited, 1),
                arrival_ages=(round(waited / 2, 1), round(waited, 1)),
            )
        )
    writer.add_problem(
        now - timedelta(minutes=188), "[STORAGE_UNREACHABLE] the lake did not answer; the next run went on"
    )
    writer.write(now, last=True)


def addresses() -> dict[str, str]:
    """Returns the pages by the names of their screenshots."""
    pages = {page.name: page.route.replace("{pipeline}", "games") for page in PAGES}
    return {name: route for name, route in pages.items() if "{" not in route and name not in COLD} | MORE


@contextmanager
def serve_console(project: Path, acts: FakeActions) -> Iterator[str]:
    """Serves the console of a project on a free port; the address has no trailing slash."""
    root = write_project(project)
    declared = root / "include" / "pipelines" / "games" / "pipeline.yaml"
    declared.write_text(declared.read_text() + PRIVACY)
    catalog = load_catalog("local", root=root, skip_invalid=True)
    objects = open_objects(catalog.environment.lake)
    write_records(objects)
    reports = health_report.check_subjects(health_report.subjects(catalog), objects)
    verdicts = {item.subject.key: health_report.verdict_to_record(item.verdict) for item in reports}
    health_report.write_verdicts(objects, verdicts, now=utc_now())
    for declared in OPERATIONS.values():
        acts.forms[declared.dag_id("landing" if declared.scope == "relay" else "games")] = params_of(declared)
    waits = PendingApproval(
        dag_id="games__restore",
        run_id="console__1",
        subject="restore games.purchase to version 811?",
        since=utc_now() - timedelta(minutes=12),
        address="/dags/games__restore/runs/console__1/tasks/approve/required_actions",
    )
    acts.approvals = (waits,)
    people = SinglePersonAuthenticator({"ada": person()})
    console = Console(
        authenticator=people,
        actions=acts,
        records=CachedObjects(lambda: objects, wait_seconds=30),
        catalog=CatalogCache(lambda: catalog),
    )
    server = uvicorn.Server(uvicorn.Config(build_console(console), host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(timeout=30)


def collect_console_errors(errors: list[str], message: Any) -> None:
    """Collects errors of the browser's console."""
    if message.type == "error":
        errors.append(message.text)


def capture(to: Path) -> list[str]:
    """Takes all screenshots and returns the errors of the browser's console."""
    from playwright.sync_api import sync_playwright

    errors: list[str] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_console(Path(folder) / "project", FakeActions()) as base,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            context = browser.new_context(
                color_scheme=scheme,  # type: ignore[arg-type]
                viewport={"width": WIDTH, "height": HEIGHT},
            )
            page = context.new_page()
            page.on("console", functools.partial(collect_console_errors, errors))
            for name, route in addresses().items():
                answer = page.goto(base + route)
                if answer is None or not answer.ok:
                    errors.append(f"{route}: {answer.status if answer else 'no answer'}")
                page.wait_for_load_state("networkidle")
                page.screenshot(path=to / f"{name}-{scheme}.png", full_page=True)
            context.close()
        browser.close()
    return errors


def main() -> int:
    """Takes all screenshots; returns 1 after a failed page or a browser error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=PROJECT_ROOT / "docs" / "screenshots")
    to: Path = parser.parse_args().to
    to.mkdir(parents=True, exist_ok=True)
    os.environ["DELTAWORKS_ENVIRONMENT"] = "local"
    complaints = capture(to)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
