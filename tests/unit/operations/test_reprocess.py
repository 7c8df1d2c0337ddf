"""The options of a reprocess from its command, its job and its form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deltaworks.errors import ConfigError
from deltaworks.operations.job import build_parser
from deltaworks.operations.options import read_options
from deltaworks.operations.registry import get_operation
from deltaworks.operations.reprocess import ReprocessOptions, build_request
from deltaworks.recovery.reprocess.plan import ReprocessRequest
from deltaworks.recovery.reprocess.selection import Selection


def options_of(*arguments: str) -> ReprocessOptions:
    values = vars(build_parser(get_operation("reprocess")).parse_args(["--pipeline", "shop", *arguments]))
    options = read_options(ReprocessOptions, {name: values[name] for name in ReprocessOptions.model_fields})
    assert isinstance(options, ReprocessOptions)
    return options


def parsed(*arguments: str) -> ReprocessRequest | None:
    return build_request(options_of(*arguments))


@pytest.mark.parametrize(
    ("arguments", "selection"),
    [
        (["--batches", "10-20"], Selection(batches=(10, 20))),
        (["--batches", "7"], Selection(batches=(7, 7))),
        (["--files", "a.json,b/*.gz"], Selection(files=("a.json", "b/*.gz"))),
        (
            ["--events", "2026-01-01..2026-01-02"],
            Selection(events=("2026-01-01T00:00:00+00:00", "2026-01-03T00:00:00+00:00")),
        ),
        (["--offsets", "t/0/5-9,t/1/3-"], Selection(offsets=("t/0/5-9", "t/1/3-"))),
        (
            ["--arrived", "2026-01-01T10:00..2026-01-01T11:00"],
            Selection(arrived=("2026-01-01T10:00:00+00:00", "2026-01-01T11:00:00+00:00")),
        ),
        (["--from-start"], Selection(from_start=True)),
    ],
)
def test_each_selection_has_its_argument(arguments: list[str], selection: Selection) -> None:
    assert parsed(*arguments) == ReprocessRequest(selection=selection)


def test_a_job_is_a_dry_run_by_default() -> None:
    assert options_of().dry_run
    assert not options_of("--no-dry-run").dry_run


def test_tables_and_switches_are_passed_on() -> None:
    request = parsed("--from-start", "--tables", "a,b", "--shadow", "--allow-missing")

    assert request == ReprocessRequest(
        selection=Selection(from_start=True), tables=("a", "b"), shadow=True, allow_missing=True
    )


def test_without_a_selection_a_reprocess_can_only_be_continued() -> None:
    assert parsed("--id", "r1") is None


def test_files_may_be_listed_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text("a.json\n\n b.json \n")

    request = parsed("--file-list", str(tmp_path / "keys.txt"))
    both = parsed("--files", "c.json", "--file-list", str(tmp_path / "keys.txt"))

    assert request is not None
    assert request.selection.files == ("a.json", "b.json")
    assert both is not None
    assert both.selection.files == ("c.json", "a.json", "b.json")
    with pytest.raises(ConfigError, match="REPROCESS_SELECTION_INVALID"):
        parsed("--file-list", str(tmp_path / "other.txt"))


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
