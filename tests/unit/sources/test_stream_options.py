"""Options of all sources, and their metrics, which are looked up rarely."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from deltaworks.errors import ConfigError
from deltaworks.sources.base import CachedLookup, SourceLag
from deltaworks.sources.kinesis.options import KinesisOptions
from deltaworks.sources.spark_formats.options import parse_s3_sqs
from deltaworks.sources.stream_options import boolean_option, check_option_names, number_option, storage_root

KNOWN = ("queueUrl", "maxFiles")


@pytest.mark.parametrize("parse", [KinesisOptions.parse, parse_s3_sqs])
def test_every_source_rejects_unknown_option_names(parse: object) -> None:
    assert callable(parse)
    with pytest.raises(ConfigError, match=r"SOURCE_OPTION_INVALID.*'maxfile' is not known; known are"):
        parse({"maxfile": "1"})


def test_option_names_are_case_insensitive_and_spelled_as_documented() -> None:
    assert check_option_names("s", {"queueurl": "a", "MAXFILES": "b", "path": "c"}, KNOWN) == {
        "queueUrl": "a",
        "maxFiles": "b",
        "path": "c",
    }


@pytest.mark.parametrize(("text", "value"), [("7", 7), ("64MiB", 64 << 20)])
def test_a_number_may_be_a_size(text: str, value: int) -> None:
    assert number_option("s", {"n": text}, "n", 1) == value


@pytest.mark.parametrize(
    ("text", "said"), [("many", "integer"), ("0", "between 1 and 9, not 0"), ("10", "between 1 and 9, not 10")]
)
def test_a_number_out_of_bounds_is_rejected(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        number_option("s", {"n": text}, "n", 1, maximum=9)


def test_a_boolean_is_true_or_false() -> None:
    assert boolean_option("s", {"t": "TRUE"}, "t", default=False)
    assert boolean_option("s", {}, "t", default=True)
    with pytest.raises(ConfigError, match="'t' must be true or false"):
        boolean_option("s", {"t": "1"}, "t", default=False)


@pytest.mark.parametrize(
    ("location", "root"),
    [
        ("s3a://lake/state", "s3://lake/state"),
        ("s3://lake/state", "s3://lake/state"),
        ("/data/state", "file:///data/state"),
        ("file:/data/state", "file:///data/state"),
        ("file:///data/state", "file:///data/state"),
    ],
)
def test_a_location_may_be_written_as_spark_writes_it(location: str, root: str) -> None:
    assert storage_root(location) == root


def test_a_lookup_is_cached_until_it_is_due_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, answers = [100.0], iter([7.0, OSError("away"), 8.0])
    asked = []

    def look() -> float:
        asked.append(clock[0])
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    retention = CachedLookup(look, description="the retention", interval_seconds=10)

    seen = []
    for clock[0] in (100.0, 109.0, 110.0, 119.0, 120.0):
        seen.append(retention.read())

    assert asked == [100.0, 110.0, 120.0]
    assert seen == [7.0, 7.0, 7.0, 7.0, 8.0]


def test_there_is_no_value_before_the_first_lookup() -> None:
    def away() -> float:
        raise OSError

    assert CachedLookup(away, description="the retention").read() is None


class CountingSource:
    """A source in which 34 files follow the position that it is asked about."""

    def backlog(self, progress: Any) -> dict[str, Any]:
        return {"backlog_files": 34 if progress is None else 0}


def test_nothing_waits_before_the_first_batch_of_a_run_is_planned() -> None:
    """Until then, only the position of an earlier run is known, behind which all may have landed."""
    lag = SourceLag(CountingSource())  # type: ignore[arg-type]
    query = SimpleNamespace(lastProgress=None)

    assert lag.read(query, is_planned=False) == {}  # type: ignore[arg-type]
    assert lag.read(query, is_planned=True) == {"backlog_files": 34}  # type: ignore[arg-type]
    looked = SimpleNamespace(lastProgress={"sources": [{}]})
    assert SourceLag(CountingSource()).read(looked, is_planned=False) == {"backlog_files": 0}  # type: ignore[arg-type]
