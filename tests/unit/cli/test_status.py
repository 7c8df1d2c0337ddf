"""`deltaworks status`: relays, streams, held tables, alerts, and each exit code."""

from __future__ import annotations

import dataclasses
import json
import re
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from deltaworks.alerts.raising import raise_alert
from deltaworks.cli import app
from deltaworks.cli import context as cli_context
from deltaworks.cli import status as cli_status
from deltaworks.cli.output import CommandOutput
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.health.report import read_verdicts, verdict_to_record, write_verdicts
from deltaworks.control.health.throughput import EventTotals, ThroughputWriter
from deltaworks.control.objects import LocalObjects
from deltaworks.control.records.held_tables import HeldTable
from deltaworks.errors import TransientError
from deltaworks.specs.environment import WEBHOOK_VARIABLE
from deltaworks.testing import declare_pipeline, declare_table, write_project
from sandbox.cli import stack as cli_stack
from sandbox.stack.report import StackStatus
from tests.commands import invoke
from tests.heartbeats import put_heartbeat

STREAMS = {"orders": "pipelines/orders", "returns": "pipelines/returns", "landing": "relays/landing"}
status = partial(invoke, "status", catch_exceptions=False)


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalObjects:
    """Two streams and their relay with recent healthy heartbeats."""
    table = declare_table("events", "device string")
    write_project(tmp_path, *(declare_pipeline(table, pipeline=name) for name in ("orders", "returns")))
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(tmp_path))
    monkeypatch.setattr(cli_context, "apply_settings", lambda: None)
    monkeypatch.setattr(cli_status, "apply_settings", lambda: None)
    monkeypatch.setattr(cli_stack.stack, "status", lambda: StackStatus(False, False, (), None, ()))
    objects = LocalObjects(tmp_path / "lake")
    for name in STREAMS:
        write_heartbeat(objects, name)
    return objects


def write(root: Path, name: str, text: str) -> None:
    path = root / "include" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_heartbeat(objects: LocalObjects, name: str, *, seconds_ago: float = 5, **changes: Any) -> None:
    at = (utc_now() - timedelta(seconds=seconds_ago)).isoformat()
    run = {"run": f"{name}__stream/r/ingest/1", "state": "idle", "trigger_seconds": 5}
    batch = {"last_batch_at": at, "batch_id": 7, "backlog_files": 0}
    put_heartbeat(objects, f"control/{STREAMS[name]}", name, at=at, **run | batch | changes)


def rows_of(shown: Result) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(shown.stdout)["relays and streams"]}


def test_a_healthy_lake_exits_with_0_and_lists_every_relay_and_stream(objects: LocalObjects) -> None:
    shown = status()

    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("Healthy. 2 streams: 2 healthy. ")
    listed = {line.split()[0]: line for line in lines if line.startswith(("orders ", "returns "))}
    assert set(listed) == {"orders", "returns"}
    assert "healthy" in listed["orders"]
    assert "nothing waits" in listed["orders"]
    assert "1 other process is healthy; --all lists them." in lines
    assert "No table is held." in lines[0]
    assert "No alert is open." in lines[0]
    everything = status("--all").stdout.splitlines()
    assert {line.split()[1] for line in everything if line.startswith(("relay ", "stream "))} == set(STREAMS)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("streams", [2, 20])
def test_the_status_of_a_healthy_lake_fits_a_screen(
    objects: LocalObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int, streams: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    table = declare_table("events", "device string")
    names = ["orders", "returns", *(f"orders_of_shop_{number}" for number in range(streams - 2))]
    write_project(tmp_path, *(declare_pipeline(table, pipeline=name) for name in names))
    for name in names:
        control = f"control/pipelines/{name}"
        at = (utc_now() - timedelta(seconds=5)).isoformat()
        put_heartbeat(
            objects, control, name, at=at, run=f"{name}__stream/r/ingest/1", state="idle",
            trigger_seconds=5, last_batch_at=at, batch_id=7, backlog_files=1_234, oldest_pending_at=at,
        )  # fmt: skip

    lines = status().stdout.splitlines()

    assert len(lines) <= streams + 10
    assert max(map(len, lines)) <= columns


def test_troubles_are_paragraphs_before_the_streams(objects: LocalObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    write_heartbeat(objects, "orders", seconds_ago=3_600)
    raise_alert(objects, cause="STREAM_UNHEALTHY", subject="stream orders", summary="It is the same. Next: Nothing.")
    for number in range(12):
        raise_alert(
            objects, cause="JOB_FAILED", subject=f"orders__gold.step_{number}", summary="It failed. Next: Read its log."
        )

    lines = status().stdout.splitlines()

    assert lines[0].startswith("Not healthy. ")
    place = {line.split(":")[0].split(" since")[0].split(" is")[0]: n for n, line in reversed([*enumerate(lines)])}
    assert place["stream orders"] < place["warning orders__gold.step_0"]
    assert lines[place["warning orders__gold.step_0"] + 1 :][:2] == ["    It failed.", "    Next: Read its log."]
    assert not any("It is the same" in line for line in lines), "one trouble is shown once"
    assert any(line.startswith("4 more, see `deltaworks alerts show`: ") for line in lines)
    assert (
        next(n for n, line in enumerate(lines) if line.startswith("stream  "))
        > place["4 more, see `deltaworks alerts show`"]
    )
    assert max(map(len, lines)) <= 80


def test_a_missing_alert_channel_is_reported(objects: LocalObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = status()
    monkeypatch.setenv(WEBHOOK_VARIABLE, "https://alerts.example/hook")
    heard = status()

    assert "ALERTS_UNDELIVERED: Alerts reach no person" in alone.stdout
    assert WEBHOOK_VARIABLE in alone.stdout
    assert "ALERTS_UNDELIVERED" not in heard.stdout
    assert (alone.exit_code, heard.exit_code) == (0, 0)


def test_a_stream_is_listed_with_rows_quarantine_lag_and_start(objects: LocalObjects) -> None:
    since = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    write_heartbeat(
        objects, "orders", backlog_files=3, oldest_pending_at=(utc_now() - timedelta(seconds=90)).isoformat()
    )
    throughput = ThroughputWriter(objects, paths.throughput("control/pipelines/orders"))
    throughput.add(utc_now(), EventTotals(events=1_040, rows=2_000, quarantined=40))
    throughput.write(utc_now())
    before = {
        dag_id: verdict_to_record(dataclasses.replace(verdict, since=since)) for dag_id, verdict in judged().items()
    }
    write_verdicts(objects, before, now=utc_now())

    shown, orders = status("--all"), rows_of(status("--json"))["orders"]

    assert re.search(r"3 files, \d+ (s|min)\n", status().stdout)
    assert "2,000" in shown.stdout
    assert "3 files wait, the oldest for" in shown.stdout
    assert "2026-01-02 03:04" in shown.stdout
    assert (orders["rows_in_the_last_hour"], orders["quarantined_in_the_last_hour"]) == (2_000, 40)
    assert orders["lag"] >= 90
    assert orders["since"] == since.isoformat()
    assert orders["heartbeat"]["batch_id"] == 7
    assert read_verdicts(objects)["orders__stream"].since == since


def judged() -> dict[str, Any]:
    from deltaworks.control.health.verdicts import Verdict

    facts = {"state": "healthy", "cause": "OK", "detail": "", "next_step": "", "since": utc_now()}
    return {"orders__stream": Verdict(kind="stream", name="orders", **facts)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds_ago": 3_600},
        {"seconds_ago": 3_600, "state": "failed", "error": {"condition": "SPEC_INVALID", "retryable": False}},
        {"held": ({"table": "events", "reason": "suspended", "at": "2026-01-01T00:00:00+00:00"},)},
    ],
    ids=["frozen", "failed", "suspended table"],
)
def test_an_unhealthy_stream_exits_with_1_and_a_next_step(objects: LocalObjects, changes: dict[str, Any]) -> None:
    write_heartbeat(objects, "orders", **changes)

    shown = status()

    assert shown.exit_code == 1
    assert [line for line in shown.stdout.splitlines() if line.startswith("stream orders is unhealthy since ")]
    assert [line for line in shown.stdout.splitlines() if line.startswith("    Next: ")]


def test_a_member_of_a_group_is_named_with_the_dag_that_runs_it(objects: LocalObjects, tmp_path: Path) -> None:
    table = declare_table("events", "device string")
    write_project(tmp_path, declare_pipeline(table, pipeline="orders", stream_group="small"))
    write_heartbeat(objects, "orders", seconds_ago=3_600)

    for shown in (status().stdout, status("--all").stdout):
        assert "orders__stream" not in shown.replace("orders__stream/r/ingest/1", "the run")
        assert "the DAG small__stream_group" in " ".join(shown.split())


def test_a_stopped_stream_is_healthy(objects: LocalObjects) -> None:
    write_heartbeat(objects, "orders", seconds_ago=9_000, state="ended")
    StopFlag(objects, paths.stop_request("control/pipelines/orders")).set(by="ada", reason="upgrade")

    shown = status("--json")

    assert shown.exit_code == 0
    assert rows_of(shown)["orders"]["state"] == "stopped"


def test_a_held_table_is_listed_and_a_suspended_one_exits_with_1(objects: LocalObjects) -> None:
    record = HeldTable(table="events", reason="write_turn", since_batch=3, at="2026-01-01T00:00:00+00:00", by="ada")
    objects.put(paths.held_table("orders", "events"), record.encode())
    turn = status()
    objects.put(paths.held_table("orders", "events"), record.replace(reason="suspended", condition="X").encode())
    suspended = status()

    assert (turn.exit_code, suspended.exit_code) == (0, 1)
    assert [line.split()[:3] for line in turn.stdout.splitlines() if "write_turn" in line] == [
        ["orders", "events", "write_turn"]
    ]


def test_an_open_alert_is_listed_and_exits_with_1(objects: LocalObjects) -> None:
    raise_alert(objects, cause="JOB_FAILED", subject="orders__gold.rebuild_gold", summary="It failed.")

    shown = status()

    assert shown.exit_code == 1
    assert "orders__gold.rebuild_gold" in shown.stdout


def test_an_invalid_spec_is_listed_with_the_others(objects: LocalObjects, tmp_path: Path) -> None:
    write(tmp_path, "pipelines/returns/pipeline", "pipeline: returns\nwrong: 1\n")

    shown = status("--json")

    assert shown.exit_code == 1
    assert {name: row["cause"] for name, row in rows_of(shown).items()} == {
        "landing": "OK",
        "orders": "OK",
        "returns": "INVALID_DECLARATION",
    }


def test_an_unhealthy_program_exits_with_1(objects: LocalObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_stack.stack, "status", lambda: StackStatus(True, False, (), None, ()))

    assert status().exit_code == 1


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def stack_down(objects: LocalObjects, tmp_path: Path, free_port: int) -> str:
    """All services are declared on unreachable servers."""
    endpoint = f"http://127.0.0.1:{free_port}"
    store = f'{{root: "s3://lake", endpoint: "{endpoint}"}}'
    text = f'environment: local\nlake: {store}\nlanding: {store}\nmessaging: {{endpoint: "{endpoint}"}}\n'
    write(tmp_path, "environments/local", text)
    return endpoint


def test_a_stack_that_is_down_exits_with_21(stack_down: str) -> None:
    shown = status()

    assert shown.exit_code == 21
    assert "The stack is not running." in shown.stdout
    assert f"Nothing answers at {stack_down} (the lake). `deltaworks up` starts the embedded stack." in shown.stdout


def test_a_stack_that_was_never_started_exits_with_21(
    objects: LocalObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DELTAWORKS_LAKE_ENDPOINT", raising=False)
    lake = {"root": f"file://{tmp_path}/lake", "endpoint": "env:DELTAWORKS_LAKE_ENDPOINT"}
    write_project(tmp_path, environment={"lake": lake})

    assert status().exit_code == 21


#: Of each kind: what reads tables, what reads control objects, what runs an operation, what asks other services.
NEEDING_STORAGE = (
    ("batches", "orders"), ("tables",), ("tables", "check"), ("sql", "SELECT 1"), ("files", "list", "landing"),
    ("quarantine", "list", "orders"), ("quarantine", "replay", "orders"), ("alerts", "show"), ("stop", "orders"),
    ("start", "orders"), ("pipelines", "diff", "orders"), ("reprocess", "orders", "--from-start"),
    ("restore", "orders", "events", "--to-version", "1"), ("wire", "landing"),
)  # fmt: skip


@pytest.mark.parametrize("words", NEEDING_STORAGE, ids=" ".join)
def test_every_command_that_needs_storage_fails_fast_if_it_is_unreachable(
    words: tuple[str, ...], stack_down: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3

    def client(*_: Any, **__: Any) -> None:
        raise AssertionError("a client was made")

    monkeypatch.setattr(boto3.session.Session, "client", client)

    with pytest.raises(TransientError, match=f"Nothing answers at {stack_down}") as refused:
        CliRunner().invoke(app, list(words), catch_exceptions=False)

    assert refused.value.condition == "STORAGE_UNREACHABLE"
    assert "deltaworks up" in refused.value.hint


@pytest.fixture
def accepting() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_remote_storage_is_not_called_the_embedded_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    from deltaworks.cli.context import check_reachable
    from deltaworks.specs.storage import AwsSpec

    def refuse(*_: Any, **__: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", refuse)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(TransientError, match=r"Nothing answers at https://minio\.internal:9000") as refused:
        check_reachable(AwsSpec(endpoint="https://minio.internal:9000"), section="lake", environment="prod")
    assert refused.value.hint == "Check lake.endpoint in include/environments/prod.yaml, and the network."

    check_reachable(AwsSpec(), section="lake", environment="prod")
    monkeypatch.setenv("https_proxy", "http://proxy.internal:3128")
    check_reachable(AwsSpec(endpoint="https://minio.internal:9000"), section="lake", environment="prod")


def test_reachable_storage_is_probed_only_once(accepting: socket.socket) -> None:
    from deltaworks.cli.context import check_reachable
    from deltaworks.specs.storage import AwsSpec

    endpoint = f"http://127.0.0.1:{accepting.getsockname()[1]}"
    check_reachable(AwsSpec(endpoint=endpoint), section="lake", environment="local")

    connection, _ = accepting.accept()
    with connection:
        assert connection.recv(1) == b"", "it asks for nothing"
    accepting.setblocking(False)
    with pytest.raises(BlockingIOError):
        accepting.accept()


def test_the_help_explains_the_exit_codes() -> None:
    shown = CliRunner().invoke(app, ["status", "--help"]).stdout

    assert "Exits with 0 if all is healthy, 1 if not, 21 if the stack is down" in " ".join(shown.split())
    assert CommandOutput([]).exit_code == 0
    assert (cli_status.UNHEALTHY_EXIT_CODE, TransientError.exit_code) == (1, 21)
