"""What to read again is said alike on the command line, in the job and in the form of the DAG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deltaworks.errors import ConfigError
from deltaworks.rework.reprocess.arguments import parser, request
from deltaworks.rework.reprocess.plan import ReprocessRequest
from deltaworks.rework.reprocess.selection import Selection


def parsed(*arguments: str) -> ReprocessRequest | None:
    return request(vars(parser("").parse_args(["--pipeline", "shop", *arguments])))


@pytest.mark.parametrize(
    ("arguments", "selection"),
    [
        (["--batches", "10-20"], Selection(batches=(10, 20))),
        (["--batches", "7"], Selection(batches=(7, 7))),
        (["--files", "a.json,b/*.gz"], Selection(files=("a.json", "b/*.gz"))),
        (["--events", "2026-01-01..2026-01-02"], Selection(events=("2026-01-01", "2026-01-02"))),
        (["--from-start"], Selection(from_start=True)),
    ],
)
def test_each_way_to_select_has_its_argument(arguments: list[str], selection: Selection) -> None:
    assert parsed(*arguments) == ReprocessRequest(selection=selection)


def test_a_job_counts_unless_it_is_told_otherwise() -> None:
    assert parser("").parse_args(["--pipeline", "shop"]).dry_run
    assert not parser("").parse_args(["--pipeline", "shop", "--no-dry-run"]).dry_run


def test_tables_and_switches_are_taken_over() -> None:
    asked = parsed("--from-start", "--tables", "a,b", "--shadow", "--allow-missing")

    assert asked == ReprocessRequest(
        selection=Selection(from_start=True), tables=("a", "b"), shadow=True, allow_missing=True
    )


def test_without_a_selection_there_is_only_something_to_go_on_with() -> None:
    assert parsed("--id", "r1") is None


def test_files_may_be_listed_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text("a.json\n\n b.json \n")

    asked = parsed("--files", f"@{tmp_path / 'keys.txt'}")

    assert asked is not None
    assert asked.selection.files == ("a.json", "b.json")
    with pytest.raises(ConfigError, match="REPROCESS_SELECTION"):
        parsed("--files", f"@{tmp_path / 'other.txt'}")


@pytest.mark.parametrize("wrong", [{"batches": "a-b"}, {"events": "2026"}, {"batches": "1", "from_start": True}])
def test_what_cannot_be_understood_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="REPROCESS_SELECTION"):
        request(wrong)
