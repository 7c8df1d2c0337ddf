"""`deltaworks generate viewers` and `market` write objects together with the expected results."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from tests.commands import output_of

generate = partial(output_of, "generate")


def objects(folder: Path, pipeline: str) -> dict[str, bytes]:
    paths = sorted((folder / pipeline).rglob("*.gz"))
    return {str(path.relative_to(folder)): gzip.decompress(path.read_bytes()) for path in paths}


def test_viewers_are_written_as_both_pipelines_get_them(tmp_path: Path) -> None:
    options = ("viewers", "--views", "12", "--minutes", "5", "--start", "2025-06-01T10:00", "--directory")
    said = generate(*options, str(tmp_path / "a"))
    generate(*options, str(tmp_path / "b"))

    answers = json.loads((tmp_path / "a" / "truth.json").read_text())
    players, logs = objects(tmp_path / "a", "video_qos"), objects(tmp_path / "a", "cdn_logs")
    assert "12 views" in said
    assert (answers["views"], answers["objects"]["cdn_logs"]) == (12, len(logs))
    assert all(b"#Fields: date time" in log for log in logs.values())
    assert b'"received_at":"2025-06-01T10:0' in b"".join(players.values())
    assert {row[0][:16] for row in answers["qos_minute"]} <= {f"2025-06-01T10:0{minute}" for minute in range(5)}
    assert players == objects(tmp_path / "b", "video_qos")


def test_a_market_is_written_as_both_pipelines_get_it(tmp_path: Path) -> None:
    generate("market", "--first", "2024-05-01", "--last", "2024-06-28", "--directory", str(tmp_path))

    answers = json.loads((tmp_path / "truth.json").read_text())
    prices, filings = objects(tmp_path, "stocks"), objects(tmp_path, "filings")
    assert (len(prices), len(filings)) == (answers["objects"]["stocks"], answers["objects"]["filings"])
    assert {row[1] for row in answers["pe_daily"]} == {"DWAA", "DWBB", "DWCC", "DWDD"}
    assert min(row[0] for row in answers["pe_daily"]) == "2024-05-01"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("viewers",), "Say where the events go"),
        (("market", "--land", "--directory", "out"), "Say where the events go"),
        (("viewers", "--start", "yesterday", "--directory", "out"), "'yesterday' is no date and no time"),
        (("market", "--last", "2024-13-01", "--directory", "out"), "'2024-13-01' is no date and no time"),
    ],
)
def test_options_that_say_nothing_are_refused(options: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        generate(*options)
