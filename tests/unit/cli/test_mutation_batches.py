"""`deltaworks mutations status`: batches, what waits, and the last pause, as an operator meets them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from deltaworks.cli import mutation_batches, mutations
from deltaworks.control.records.mutation import APPLIED, MutationEnd, TableMutation
from deltaworks.mutations.bounds import Bounds
from tests.spark.mutations.mutation_stage import PIPELINE, START, MutationStage


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MutationStage:
    stage = MutationStage(tmp_path)
    monkeypatch.setattr(mutation_batches, "catalog", lambda: stage.catalog)
    monkeypatch.setenv("COLUMNS", "200")
    return stage


def land(stage: MutationStage, requests: int) -> None:
    base = {"org_id": "acme", "time": START, "op": "delete", "id": "a"}
    stage.land(requests=[{**base, "seq": number} for number in range(requests)])


def begin(stage: MutationStage, number: int) -> None:
    batch = Bounds(stage.lake, stage.objects, stage.spec).following(number)
    assert batch is not None
    stage.batches.fix(batch)


def status() -> str:
    return CliRunner().invoke(mutations.app, ["status", PIPELINE], catch_exceptions=False).output


def test_what_waits_is_counted_before_there_was_a_batch(stage: MutationStage) -> None:
    assert status().strip() == "No request waits."

    land(stage, 3)

    assert "3 requests wait, the oldest for 0 minutes." in status()


def test_batches_are_listed_with_what_they_did_and_one_that_died_is_told(stage: MutationStage) -> None:
    land(stage, 2)
    begin(stage, 1)
    done = TableMutation(
        table="activities", rows=1_234, files_removed=7, files_added=7, version=3, pause_seconds=2.5, optimized=False
    )
    stage.batches.complete(
        MutationEnd(
            pipeline=PIPELINE,
            number=1,
            generation=1,
            outcome=APPLIED,
            at="2026-01-01T00:00:00.000+00:00",
            requests={"delete": 2},
            not_understood=1,
            tables=(done,),
            seconds={"merge": 2.0, "resolve": 1.5},
        )
    )
    land(stage, 1)
    begin(stage, 2)

    told = status()

    (line,) = [line for line in told.splitlines() if "applied" in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == [
        "1",
        "applied",
        "2026-01-01T00:00:00.000+00:00",
        "2 delete, 1 not understood",
        "1,234",
        "7",
        "2.5",
        "3.5",
    ]
    assert "Batch 2 was begun and has not ended; the next run completes it." in told
    assert "1 requests wait" in told
    assert "The last batch kept the stream from a table for 2.5 s." in told
