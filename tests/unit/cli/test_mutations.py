"""`deltaworks mutations resolve` and `status`."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deltaworks.cli import mutations
from deltaworks.cli.mutations import OutputFormat, print_rows
from deltaworks.control.records.mutation import APPLIED, MutationCompletion, TableMutation
from deltaworks.errors import ConfigError
from deltaworks.mutations.bounds import BatchPlanner
from tests.spark.mutations.mutation_harness import PIPELINE, START, MutationHarness

COLUMNS = ("org_id", "final_id", "deleted", "hops")
ROWS = [
    {"org_id": "", "final_id": None, "deleted": True, "hops": 2},
    {"org_id": "o", "final_id": 'a,"ä"', "deleted": False, "hops": 1},
]


def test_a_bad_file_ends_the_command_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "renames.csv"
    path.write_text("ts,old_id,new_id\n1,a,\n")

    done = CliRunner().invoke(mutations.app, ["resolve", str(path)])

    assert isinstance(done.exception, ConfigError)
    assert done.exception.condition == "MUTATION_FILE_INVALID"
    assert "line 2: new_id is empty" in done.exception.message


def test_two_output_formats_are_rejected(tmp_path: Path) -> None:
    done = CliRunner().invoke(mutations.app, ["resolve", str(tmp_path / "none.csv"), "--csv", "--json"])

    assert done.exit_code == 2
    assert "use either --csv or --json" in done.output


def test_csv_has_a_header_and_empty_cells_for_missing_values() -> None:
    to = io.StringIO()

    print_rows(ROWS, COLUMNS, OutputFormat.CSV, to)

    assert to.getvalue() == 'org_id,final_id,deleted,hops\n,,true,2\no,"a,""ä""",false,1\n'


@pytest.mark.parametrize("rows", [[], ROWS[:1], ROWS])
def test_json_is_one_array(rows: list[dict[str, object]]) -> None:
    to = io.StringIO()

    print_rows(rows, COLUMNS, OutputFormat.JSON, to)

    assert json.loads(to.getvalue()) == rows
    assert to.getvalue().endswith("]\n")


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MutationHarness:
    harness = MutationHarness(tmp_path)
    monkeypatch.setattr(mutations, "catalog", lambda: harness.catalog)
    monkeypatch.setenv("COLUMNS", "200")
    return harness


def land(harness: MutationHarness, requests: int) -> None:
    base = {"org_id": "acme", "time": START, "op": "delete", "id": "a"}
    harness.land(requests=[{**base, "seq": number} for number in range(requests)])


def begin(harness: MutationHarness, number: int) -> None:
    batch = BatchPlanner(harness.lake, harness.objects, harness.spec).plan_batch(number)
    assert batch is not None
    harness.batches.get_or_create(batch)


def status() -> str:
    return CliRunner().invoke(mutations.app, ["status", PIPELINE], catch_exceptions=False).output


def test_pending_requests_are_counted_before_the_first_batch(harness: MutationHarness) -> None:
    assert status().strip() == "No requests are pending."

    land(harness, 3)

    assert "3 requests are pending, the oldest for 0 minutes." in status()


def test_batches_are_listed_with_results_and_an_incomplete_one_is_reported(harness: MutationHarness) -> None:
    land(harness, 2)
    begin(harness, 1)
    done = TableMutation(
        table="activities", rows=1_234, files_removed=7, files_added=7, version=3, pause_seconds=2.5, optimized=False
    )
    harness.batches.complete(
        MutationCompletion(
            pipeline=PIPELINE,
            number=1,
            generation=1,
            outcome=APPLIED,
            at="2026-01-01T00:00:00.000+00:00",
            engine="process",
            requests={"delete": 2},
            invalid_requests=1,
            tables=(done,),
            seconds={"merge": 2.0, "resolve": 1.5},
        )
    )
    land(harness, 1)
    begin(harness, 2)

    told = status()

    (line,) = [line for line in told.splitlines() if "applied" in line]
    assert re.split(r"  +", line) == [
        "1",
        "applied",
        "process",
        "2026-01-01T00:00:00.000+00:00",
        "2 delete, 1 not understood",
        "1,234",
        "7",
        "2.5",
        "3.5",
    ]
    assert "Batch 2 is incomplete; the next run completes it." in told
    assert "1 requests are pending" in told
    assert "The last batch kept the stream from a table for 2.5 s." in told
