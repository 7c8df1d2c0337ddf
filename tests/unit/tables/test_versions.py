"""Readable versions of a table, and the nearest ones to unreadable ones."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.errors import ContractError
from deltaworks.tables.versions import Versions
from deltaworks.testing import local_lake
from tests.examples import examples

KEY = "tables/shop/orders"
START = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)


def write(root: Path, *values: int, mode: str = "append") -> None:
    """Commits one value at a time."""
    for value in values:
        write_deltalake(root / KEY, pa.table({"value": [value]}), mode=mode)  # type: ignore[arg-type]


def set_times(root: Path, seconds: list[int], *, key: str = KEY) -> None:
    """Put the commits of the log at these seconds after the start, in order."""
    for version, second in enumerate(seconds):
        path = root / key / "_delta_log" / f"{version:020d}.json"
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] = int((START.timestamp() + second) * 1000)
        path.write_text("\n".join(json.dumps(action) for action in actions))


def versions(root: Path) -> Versions:
    return Versions(local_lake(root), KEY, name="shop.orders")


def values(table: DeltaTable) -> list[int]:
    return sorted(table.to_pyarrow_table().column("value").to_pylist())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, 1, 2, 3)
    set_times(tmp_path, [0, 60, 120])
    return tmp_path


def test_a_version_has_the_rows_it_had(root: Path) -> None:
    assert [values(versions(root).open(version)) for version in range(3)] == [[1], [1, 2], [1, 2, 3]]


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("long")
    write(root, *range(12))
    return root


@settings(max_examples=examples(8))
@given(
    steps=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    asked=st.integers(-1, 40),
)
def test_the_version_at_a_time_equals_that_of_a_linear_search(long_log: Path, steps: list[int], asked: int) -> None:
    seconds = [sum(steps[: number + 1]) for number in range(12)]
    set_times(long_log, seconds)
    expected = max((version for version, second in enumerate(seconds) if second <= asked), default=None)

    if expected is None:
        with pytest.raises(ContractError, match="TABLE_VERSION_UNAVAILABLE"):
            versions(long_log).version_at(START + dt.timedelta(seconds=asked))
    else:
        assert versions(long_log).version_at(START + dt.timedelta(seconds=asked)) == expected


@pytest.mark.parametrize(("version", "nearest"), [(9, 2), (-1, 0)])
def test_a_missing_version_is_rejected_with_the_existing_ones(root: Path, version: int, nearest: int) -> None:
    with pytest.raises(ContractError) as caught:
        versions(root).open(version)

    assert caught.value.condition == "TABLE_VERSION_UNAVAILABLE"
    held = "version 0 (2026-05-01 00:00:00 UTC) to version 2 (2026-05-01 00:02:00 UTC)"
    assert held in caught.value.message
    assert f"VERSION AS OF {nearest}," in caught.value.hint


def test_a_time_before_the_log_names_the_oldest_version_and_its_time(root: Path) -> None:
    with pytest.raises(ContractError) as caught:
        versions(root).version_at(START - dt.timedelta(days=1))

    assert "version 0 (2026-05-01 00:00:00 UTC)" in caught.value.message
    assert "VERSION AS OF 0," in caught.value.hint


def test_a_time_in_the_future_has_no_version(root: Path) -> None:
    with pytest.raises(ContractError, match="in the future"):
        versions(root).version_at(dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))


def test_versions_without_commits_are_unavailable_and_that_of_the_checkpoint_is_available(root: Path) -> None:
    DeltaTable(root / KEY).create_checkpoint()
    write(root, 4)
    for version in (0, 1):
        (root / KEY / "_delta_log" / f"{version:020d}.json").unlink()

    assert values(versions(root).open(2)) == [1, 2, 3]
    with pytest.raises(ContractError, match=r"no version 1: its log holds version 2 \(2026.*\) to version 3"):
        versions(root).open(1)


def test_a_vacuumed_version_names_the_next_readable_one(root: Path) -> None:
    write(root, 10, mode="overwrite")
    write(root, 11)
    assert versions(root).missing_files_error(1) is None

    DeltaTable(root / KEY).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    error = versions(root).missing_files_error(1)

    assert error is not None
    assert error.condition == "TABLE_VERSION_VACUUMED"
    assert error.message.startswith("2 of 2 files of version 1 of shop.orders have been removed")
    assert "VERSION AS OF 3." in error.hint
    assert versions(root).missing_files_error(3) is None
    assert values(versions(root).open(3)) == [10]


def test_if_the_newest_version_has_missing_files_too_a_check_is_advised(root: Path) -> None:
    for file in (root / KEY).glob("*.parquet"):
        file.unlink()

    error = versions(root).missing_files_error(1)

    assert error is not None
    assert "every later version" in error.message
    assert "tables check" in error.hint


HOUR = 3600


def set_commit_info(root: Path, version: int, info: dict[str, object] | None, *, stored_at: int | None = None) -> None:
    """Replaces the `commitInfo` of a commit; None removes it. The storage receives it at `stored_at`."""
    path = root / KEY / "_delta_log" / f"{version:020d}.json"
    actions = [action for line in path.read_text().splitlines() if "commitInfo" not in (action := json.loads(line))]
    path.write_text(
        "\n".join(json.dumps(action) for action in ([] if info is None else [{"commitInfo": info}]) + actions)
    )
    if stored_at is not None:
        os.utime(path, (START.timestamp() + stored_at,) * 2)


def at(seconds: float) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


def ms(seconds: float) -> int:
    return int((START.timestamp() + seconds) * 1000)


@pytest.mark.parametrize(
    "info",
    [
        None,
        {},
        {"timestamp": None},
        {"operation": "WRITE", "operationMetrics": None},
        {"timestamp": 0},
        {"timestamp": "yesterday"},
        {"timestamp": 10**18},
        {"timestamp": None, "operation": None, "engineInfo": None, "userMetadata": None},
    ],
)
def test_a_commit_that_records_no_time_has_that_of_the_storage(root: Path, info: dict[str, object] | None) -> None:
    for version in range(3):
        set_commit_info(root, version, info, stored_at=version * HOUR)

    found = versions(root)

    assert [found.version_at(at(seconds)) for seconds in (0, HOUR - 1, HOUR, 2 * HOUR - 1, 3 * HOUR)] == [0, 0, 1, 1, 2]
    with pytest.raises(ContractError, match="TABLE_VERSION_UNAVAILABLE"):
        found.version_at(at(-1))


@pytest.mark.parametrize("info", [None, {"timestamp": None}])
def test_a_commit_without_time_is_no_younger_than_the_next_one_with_it(
    root: Path, info: dict[str, object] | None
) -> None:
    # A copied log: the storage received all commits much later than they were made.
    set_commit_info(root, 1, info, stored_at=100 * HOUR)

    assert [versions(root).version_at(at(seconds)) for seconds in (0, 60, 119, 120, 500)] == [0, 0, 0, 2, 2]


def test_the_first_and_the_last_commit_may_record_no_time(root: Path) -> None:
    set_commit_info(root, 0, None, stored_at=100 * HOUR)
    set_commit_info(root, 2, None, stored_at=HOUR)

    assert [versions(root).version_at(at(seconds)) for seconds in (60, 61, HOUR - 1, HOUR)] == [1, 1, 1, 2]
    with pytest.raises(ContractError, match="TABLE_VERSION_UNAVAILABLE"):
        versions(root).version_at(at(59))


def test_an_in_commit_timestamp_takes_precedence(root: Path) -> None:
    for version, second in enumerate((10, 20, 30)):
        # The clock of the writer is wrong; the in-commit timestamp is the one that readers agree on.
        info = {"timestamp": ms(HOUR - version), "inCommitTimestamp": ms(second)}
        set_commit_info(root, version, info, stored_at=5 * HOUR)

    assert [versions(root).version_at(at(seconds)) for seconds in (10, 19, 20, 30, HOUR)] == [0, 0, 1, 2, 2]


def test_in_commit_timestamps_may_begin_in_the_middle_of_a_log(root: Path) -> None:
    set_commit_info(root, 2, {"timestamp": ms(3 * HOUR), "inCommitTimestamp": ms(90)})

    assert [versions(root).version_at(at(seconds)) for seconds in (59, 60, 89, 90, 4 * HOUR)] == [0, 1, 1, 2, 2]


@settings(max_examples=examples(40), deadline=None)
@given(
    times=st.lists(
        st.tuples(st.sampled_from(["recorded", "in_commit", "none"]), st.integers(0, 20)), min_size=12, max_size=12
    ),
    asked=st.integers(-1, 22),
)
def test_times_out_of_order_count_as_those_of_the_commit_before(
    long_log: Path, times: list[tuple[str, int]], asked: int
) -> None:
    for version, (kind, second) in enumerate(times):
        info = {"recorded": {"timestamp": ms(second)}, "in_commit": {"inCommitTimestamp": ms(second)}, "none": None}
        set_commit_info(long_log, version, info[kind], stored_at=second)
    # Slow and obvious: an unknown time is at most the next known one, and times never decrease.
    expected, newest = None, -1
    for version, (kind, second) in enumerate(times):
        following = [later for known, later in times[version + 1 :] if known != "none"]
        newest = max(newest, min([second, *following[:1]]) if kind == "none" else second)
        if newest <= asked:
            expected = version

    if expected is None:
        with pytest.raises(ContractError, match="TABLE_VERSION_UNAVAILABLE"):
            versions(long_log).version_at(at(asked))
    else:
        assert versions(long_log).version_at(at(asked)) == expected
