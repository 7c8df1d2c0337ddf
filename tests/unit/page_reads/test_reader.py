"""Table reads for pages: bounded results, and errors for unreadable tables."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.control.records.certificate import Certificate, Certificates
from deltaworks.errors import TransientError
from deltaworks.page_reads import reader
from deltaworks.page_reads.reader import MAX_INTERVALS, MAX_SAMPLES, main, run_query
from deltaworks.privacy.vault.namespace_vault import privacy_settings_of
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.mutation import INTERVALS_COLUMNS
from deltaworks.specs.project import load_catalog
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.lake import Lake
from deltaworks.testing import append_rows, pipeline_spec
from tests.dags.airflow_project import declare_vault, write_project
from tests.unit.control.records.recorded_erasure import ERASURE
from tests.unit.recovery.replay_harness import ReplayHarness, orders

PROJECT = "deltaworks.specs.project.load_catalog"


@pytest.fixture
def harness(tmp_path: Path) -> ReplayHarness:
    return ReplayHarness(tmp_path)


def use_catalog(monkeypatch: pytest.MonkeyPatch, catalog: Catalog) -> None:
    monkeypatch.setattr(PROJECT, lambda **_: catalog)


def test_the_last_commits_are_limited_and_newest_first(harness: ReplayHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    use_catalog(monkeypatch, harness.catalog(pipeline_spec(orders("int"))))
    monkeypatch.setattr(reader, "MAX_COMMITS", limit := 5)
    lake, key = Lake(harness.environment.lake), paths.table("shop", "orders")
    made = json.dumps({"run": "r1", "operation": "append", "batch": 7})
    for number in range(limit + 2):
        append_rows(lake, key, [{"n": number}], number=number, schema=arrow_schema({"n": "long"}), user_metadata=made)

    rows = run_query({"read": "history", "pipeline": "shop", "table": "orders"})["rows"]

    assert [row["version"] for row in rows] == list(range(limit + 2, 2, -1))
    assert (rows[0]["run"], rows[0]["by"], rows[0]["changes_rows"]) == ("r1", "append", True)


@pytest.fixture
def namespace_with_vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The project is one whose pipeline `games` has the namespace `players`."""
    root = write_project(tmp_path / "project")
    declared = root / "include" / "pipelines" / "games" / "pipeline.yaml"
    declared.write_text(
        declared.read_text() + "privacy: {namespace: players, fields: [{path: secret, action: drop}]}\n"
    )
    declare_vault(root)
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(root))
    monkeypatch.setenv("DELTAWORKS_ENVIRONMENT", "local")


@pytest.mark.usefixtures("namespace_with_vault")
def test_unchanged_certificates_are_counted() -> None:
    objects = open_objects(load_catalog().environment.lake)
    vault = open_objects(privacy_settings_of(load_catalog().environment).vault)
    chain, recorded = Certificates(objects, "players", vault), ERASURE["certificate"]
    assert isinstance(recorded, Certificate)
    for number in (1, 2):
        before = chain.newest()[1]
        chain.append(recorded.replace(request_id=f"e{number}", number=number, previous_sha256=before))
    question = {"read": "certificates", "namespace": "players"}

    assert run_query(question) == {"rows": [{"certificates": 2, "head": True}]}
    first = paths.erasure_certificate("players", "e1")
    objects.put(first, recorded.replace(request_id="e1", number=1, previous_sha256="", tokens=99).encode())
    assert "CERTIFICATES_BROKEN" in run_query(question)["error"]
    assert "NAMESPACE_UNKNOWN" in run_query({**question, "namespace": "player"})["error"]


@pytest.mark.usefixtures("namespace_with_vault")
def test_without_access_to_the_vault_the_end_of_a_chain_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: object, *_: object) -> None:
        raise TransientError("STORAGE_REFUSED", "AccessDenied")

    monkeypatch.setattr(Certificates, "_check_head", denied)

    assert run_query({"read": "certificates", "namespace": "players"}) == {"rows": [{"certificates": 0, "head": False}]}


def test_samples_are_the_newest_open_rows_truncated(harness: ReplayHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = pipeline_spec(orders("int"))
    use_catalog(monkeypatch, harness.catalog(spec))
    lines = [{"name": "order", "time": 1_700_000_000, "level": f"{number}" + "x" * 900} for number in range(8)]
    harness.ingest(spec, *(json.dumps(line).encode() for line in lines))

    rows = run_query({"read": "samples", "pipeline": "shop"})["rows"]

    assert len(rows) == MAX_SAMPLES
    assert rows[0]["reasons"][0]["code"] == "type_mismatch"
    assert len(rows[0]["raw"]) <= 301
    assert rows[0]["event"] == "order"
    assert run_query({"read": "samples", "pipeline": "shop", "reason": "type_mismatch"})["rows"] == rows
    assert run_query({"read": "samples", "pipeline": "shop", "reason": "malformed"})["rows"] == []


def test_an_undeclared_table_is_an_error(harness: ReplayHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    use_catalog(monkeypatch, harness.catalog(pipeline_spec(orders("int"))))
    for name in ("none", "../orders", "orders/_delta_log"):
        assert "declares no table" in run_query({"read": "history", "pipeline": "shop", "table": name})["error"]
    assert "rows" not in run_query({"read": "samples", "pipeline": "none"})
    assert "error" in run_query({"read": "everything"})
    assert "error" in run_query({"read": "history"})


def interval(name: str, final: str, until: dt.datetime | None, *, org: str = "acme", **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(INTERVALS_COLUMNS)
    return row | {"org_id": org, "id": name, "final_id": final, "valid_to": until, "deleted": False, "hops": 1} | more


def day(number: int) -> dt.datetime:
    return dt.datetime(2026, 1, number, tzinfo=dt.UTC)


def entity(harness: ReplayHarness, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], name: str) -> list[Any]:
    """Returns the history of an id in a pipeline with these intervals."""
    catalog = harness.catalog(pipeline_spec(orders("int")))
    declared = type("Declared", (), {"intervals": "intervals"})()
    spec = type("Spec", (), {"mutations": declared})()
    monkeypatch.setattr(type(catalog), "pipeline", lambda self, _: spec)
    use_catalog(monkeypatch, catalog)
    lake, key = Lake(harness.environment.lake), paths.table("shop", "intervals")
    schema = arrow_schema(INTERVALS_COLUMNS)
    made = json.dumps({"run": "r1"})
    append_rows(lake, key, rows, schema=schema, partition_by=["org_id"], user_metadata=made)
    shown = run_query({"read": "cascade", "pipeline": "shop", "organisation": "acme", "entity": name})
    assert "rows" in shown, shown
    return [(row["id"], row["final_id"]) for row in shown["rows"]]


CHAIN = [
    interval("id2", "id4", day(20)),
    interval("id1", "id4", day(3), hops=2),
    interval("id1", "id4", day(3), org="other"),
    interval("id2", "id9", None, valid_from=day(25)),
    interval("id7", "id9", day(9)),
    interval("id8", "id8b", day(9)),
]


def test_an_entity_has_all_ids_with_the_same_final_id_in_order_of_time(
    harness: ReplayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert entity(harness, monkeypatch, CHAIN, "id1") == [("id1", "id4"), ("id2", "id4")]


def test_a_reused_id_returns_both_entities_and_no_others(
    harness: ReplayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert entity(harness, monkeypatch, CHAIN, "id2") == [
        ("id1", "id4"), ("id2", "id4"), ("id7", "id9"), ("id2", "id9"),
    ]  # fmt: skip


def test_one_extra_row_marks_truncation(harness: ReplayHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [interval(f"n{number}", "end", day(1)) for number in range(MAX_INTERVALS + 50)]

    assert len(entity(harness, monkeypatch, many, "n0")) == MAX_INTERVALS + 1


def test_the_answer_is_one_line_of_json(
    harness: ReplayHarness, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_catalog(monkeypatch, harness.catalog(pipeline_spec(orders("int"))))

    assert main([json.dumps({"read": "history", "pipeline": "shop", "table": "orders"})]) == 0

    assert json.loads(capsys.readouterr().out) == {"rows": []}
    assert set(reader.QUERIES) == {"history", "samples", "cascade", "certificates"}
