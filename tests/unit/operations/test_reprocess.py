"""The options of a reprocess, and the job of a restore, which its count limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from deltaworks.control.records.generations import LostCommit
from deltaworks.errors import ConfigError
from deltaworks.operations.base import OperationContext
from deltaworks.operations.job import main
from deltaworks.operations.options import read_options
from deltaworks.operations.registry import get_operation
from deltaworks.operations.reprocess import ReprocessOptions, build_request
from deltaworks.operations.restore import RestoreOptions, describe_lost, restore, restore_point
from deltaworks.recovery.reprocess.plan import ReprocessRequest
from deltaworks.recovery.reprocess.selection import Selection
from deltaworks.specs import project
from tests.unit.recovery.restore.source_harness import SourceHarness


def options_of(**values: Any) -> ReprocessOptions:
    options = read_options(ReprocessOptions, values)
    assert isinstance(options, ReprocessOptions)
    return options


def parsed(**values: Any) -> ReprocessRequest | None:
    return build_request(options_of(**values))


@pytest.mark.parametrize(
    ("values", "selection"),
    [
        ({"batches": "10-20"}, Selection(batches=(10, 20))),
        ({"batches": "7"}, Selection(batches=(7, 7))),
        ({"files": "a.json,b/*.gz"}, Selection(files=("a.json", "b/*.gz"))),
        (
            {"events": "2026-01-01..2026-01-02"},
            Selection(events=("2026-01-01T00:00:00+00:00", "2026-01-03T00:00:00+00:00")),
        ),
        ({"offsets": "t/0/5-9,t/1/3-"}, Selection(offsets=("t/0/5-9", "t/1/3-"))),
        (
            {"arrived": "2026-01-01T10:00..2026-01-01T11:00"},
            Selection(arrived=("2026-01-01T10:00:00+00:00", "2026-01-01T11:00:00+00:00")),
        ),
        ({"from_start": True}, Selection(from_start=True)),
    ],
)
def test_each_selection_has_its_option(values: dict[str, Any], selection: Selection) -> None:
    assert parsed(**values) == ReprocessRequest(selection=selection)


def test_a_job_is_a_dry_run_by_default() -> None:
    assert options_of().dry_run
    assert not options_of(dry_run=False).dry_run


def test_tables_and_switches_are_passed_on() -> None:
    request = parsed(from_start=True, tables="a,b", shadow=True, allow_missing=True)

    assert request == ReprocessRequest(
        selection=Selection(from_start=True), tables=("a", "b"), shadow=True, allow_missing=True
    )


def test_without_a_selection_a_reprocess_can_only_be_continued() -> None:
    assert parsed(id="r1") is None


def test_files_may_be_listed_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text("a.json\n\n b.json \n")

    request = parsed(file_list=str(tmp_path / "keys.txt"))
    both = parsed(files="c.json", file_list=str(tmp_path / "keys.txt"))

    assert request is not None
    assert request.selection.files == ("a.json", "b.json")
    assert both is not None
    assert both.selection.files == ("c.json", "a.json", "b.json")
    with pytest.raises(ConfigError, match="REPROCESS_SELECTION_INVALID"):
        parsed(file_list=str(tmp_path / "other.txt"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"batches": "a-b"},
        {"batches": "3-2"},
        {"events": "2026"},
        {"arrived": "2026-01-02..2026-01-01"},
        {"batches": "1", "from_start": True},
    ],
)
def test_invalid_selections_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="REPROCESS_SELECTION_INVALID"):
        build_request(ReprocessOptions(**wrong))


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SourceHarness:
    harness = SourceHarness.at(tmp_path)
    assert isinstance(harness, SourceHarness)
    harness.land_all(0, 1, 2, 3)
    monkeypatch.setattr(project, "load_catalog", lambda skip_invalid: harness.catalog())
    return harness


def arguments(options: dict[str, Any]) -> list[str]:
    return ["--pipeline", "shop", f"--options={json.dumps(options)}"]


def run(capsys: pytest.CaptureFixture[str], options: dict[str, Any]) -> dict[str, Any]:
    assert main("restore", arguments(options)) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])[0]
    return result


@pytest.mark.parametrize("table", ["orders", ""])
def test_the_count_is_the_limit_of_the_restore(
    harness: SourceHarness, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # As a template fills it in: what was left empty is an empty text.
    point = {"to_batch": "1", "to_time": "", "to_version": ""}
    form = {"table": table, **point, "repair": "none", "reason": "a mistake"}
    counted = run(capsys, form)
    assert (counted["dry_run"], counted["rows_removed"]) == (True, 4 if table else 14)
    assert len(harness.landed("orders")) == 6

    below = form | {"max_rows": counted["rows_removed"] - 1, "dry_run": False}
    assert main("restore", arguments(below)) == ConfigError.exit_code
    assert "TOO_LARGE" in capsys.readouterr().out
    run(capsys, form | {"max_rows": counted["rows_removed"], "dry_run": False})

    assert {seq for seq, _ in harness.landed("orders")} == {1}
    assert {seq for seq, _ in harness.landed("clicks")} == ({1, 2, 3} if table else {1})


def test_times_are_parsed_as_utc_and_invalid_ones_rejected() -> None:
    point = restore_point(RestoreOptions(to_time="2026-01-31T12:00:00"))

    assert point is not None
    assert point.time is not None
    assert point.time.isoformat() == "2026-01-31T12:00:00+00:00"
    with pytest.raises(ConfigError, match="RESTORE_POINT_INVALID"):
        restore_point(RestoreOptions(to_time="yesterday"))


@pytest.mark.parametrize("options", [RestoreOptions(), RestoreOptions(table="orders")])
def test_nothing_is_counted_without_a_restore_point(harness: SourceHarness, options: RestoreOptions) -> None:
    context = OperationContext(operation=get_operation("restore"), catalog=harness.catalog(), subject="shop")

    with pytest.raises(ConfigError, match="RESTORE_POINT_INVALID"):
        restore(context, options)


def test_lost_batches_are_described_by_their_number_and_their_rows() -> None:
    def lost(*numbers: int, kind: Literal["batch", "replay"] = "batch", rows: int = 1) -> tuple[LostCommit, ...]:
        return tuple(LostCommit(kind=kind, generation=1, number=number, rows=rows, files=1) for number in numbers)

    assert describe_lost(lost(11)) == "batch 11: 1 row"
    assert describe_lost(lost(11, rows=0)) == "batch 11"
    assert describe_lost(lost(11, 12, rows=18)) == "2 batches of 11-12: 36 rows"
    assert describe_lost((*lost(11), *lost(3, 4, kind="replay"))) == "batch 11: 1 row, 2 replays of 3-4: 2 rows"
