"""VACUUM candidates and unreferenced files, compared with a table whose complete history is known."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import user_metadata
from deltaworks.tables import protected_files
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import state_at
from deltaworks.tables.protected_files import find_missing_files, table_retention_hours
from deltaworks.tables.vacuum_candidates import (
    LogTooShort,
    SparkRequired,
    candidates_by_listing,
    candidates_by_log,
    count_unreferenced,
    record_vacuumed_version,
)
from deltaworks.testing import local_lake, present
from tests.examples import examples
from tests.unit.tables.log_model import LogModel
from tests.unit.tables.test_log import STEPS as FOREIGN_STEPS
from tests.unit.tables.test_log import apply as apply_foreign_steps

KEY = "tables/shop/orders"
KEPT_HOURS = 168
VALUES = ("plain", "a b", "x%20y", "ü~:#", "_under", ".dot")
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def z85(data: bytes) -> str:
    text = ""
    for start in range(0, len(data), 4):
        number, part = int.from_bytes(data[start : start + 4]), ""
        for _ in range(5):
            number, digit = divmod(number, 85)
            part = _Z85[digit] + part
        text += part
    return text


@dataclass
class TableHistory:
    """A table written commit by commit, with the hours (ago) in which each file was needed."""

    root: Path
    hours_ago: float = 600
    commits: list[float] = field(default_factory=list)
    #: Files of the newest version, each with its vector.
    live: dict[str, tuple[str, str] | None] = field(default_factory=dict)
    #: Every path with when it was last needed; None while it is.
    until: dict[str, float | None] = field(default_factory=dict)
    #: What commits took out, by the commit, with their change feed.
    taken_out: list[tuple[int, str]] = field(default_factory=list)
    back: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        schema = {"type": "struct", "fields": [
            {"name": name, "type": "string", "nullable": True, "metadata": {}} for name in ("id", "_day")
        ]}  # fmt: skip
        features = ["deletionVectors"]
        self.commit(
            {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features,
                          "writerFeatures": [*features, "changeDataFeed"]}},
            {"metaData": {"id": "t", "format": {"provider": "parquet", "options": {}},
                          "schemaString": json.dumps(schema), "partitionColumns": ["_day"], "configuration": {},
                          "createdTime": 1}},
        )  # fmt: skip

    @property
    def lake(self) -> Lake:
        return local_lake(self.root)

    @property
    def folder(self) -> Path:
        return self.root / KEY

    @property
    def before_ms(self) -> int:
        return int((time.time() - KEPT_HOURS * 3600) * 1000)

    def table(self) -> DeltaTable:
        return present(self.lake.open(KEY))

    def write(self, path: str, *, hours_ago: float | None = None) -> str:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"x" * 10)
        self._age(target, self.hours_ago if hours_ago is None else hours_ago)
        return path

    def commit(self, *actions: dict[str, Any]) -> None:
        path = self.folder / "_delta_log" / f"{len(self.commits):020d}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))
        self._age(path, self.hours_ago)
        self.commits.append(self.hours_ago)

    def add(self, value: str) -> None:
        path = self.write(f"_day={quote(value, safe='')}/part-{uuid.uuid4()}.parquet")
        self.live[path], self.until[path] = None, None
        self.commit(self._add(path))

    def remove(self, path: str) -> None:
        self.commit(self._remove(path))
        self.back.append(path)
        del self.live[path]

    def mark(self, path: str) -> None:
        """Deletes some of a file's rows by a deletion vector."""
        removal = self._remove(path)
        name = uuid.uuid4()
        vector = self.write(f"deletion_vector_{name}.bin")
        self.live[path], self.until[vector], self.until[path] = (z85(name.bytes), vector), None, None
        self.commit(self._add(path), removal)

    def change(self) -> None:
        path = self.write(f"_change_data/cdc-{uuid.uuid4()} %.parquet")
        self.taken_out.append((len(self.commits), path))
        self.commit({"cdc": {"path": quote(path), "partitionValues": {}, "size": 10, "dataChange": False}})

    def restore(self, path: str) -> None:
        self.live[path], self.until[path] = None, None
        self.commit(self._add(path))

    def _add(self, path: str) -> dict[str, Any]:
        return {"add": {**self._file(path), "modificationTime": 1}}

    def _remove(self, path: str) -> dict[str, Any]:
        action = {"remove": {**self._file(path), "deletionTimestamp": self._ms(self.hours_ago)}}
        vector = self.live[path]
        for gone in (path, *([vector[1]] if vector else [])):
            self.until[gone] = self.hours_ago
            self.taken_out.append((len(self.commits), gone))
        return action

    def _file(self, path: str) -> dict[str, Any]:
        vector = self.live[path]
        value = path.split("/", maxsplit=1)[0].removeprefix("_day=")
        action = {"path": quote(path), "partitionValues": {"_day": value}, "size": 10, "dataChange": True}
        if vector is not None:
            marks = {"storageType": "u", "pathOrInlineDv": vector[0], "offset": 1, "sizeInBytes": 9, "cardinality": 1}
            action["deletionVector"] = marks
        return action

    @staticmethod
    def _ms(hours_ago: float) -> int:
        return int((time.time() - hours_ago * 3600) * 1000)

    def _age(self, path: Path, hours_ago: float) -> None:
        then = self._ms(hours_ago) / 1000
        os.utime(path, (then, then))

    # -- what may go, by what is known ---------------------------------------------------------------------------

    def is_required(self, path: str) -> bool:
        return path in self.until and (self.until[path] is None or (self.until[path] or 0) <= KEPT_HOURS)

    def candidates_by_listing(self, hours: dict[str, float]) -> set[str]:
        """Candidates by listing, for files of these ages."""
        return {
            path
            for path, age in hours.items()
            if age > KEPT_HOURS and not self.is_required(path) and not path.startswith("_tmp/") and "/." not in path
        }

    def candidates_by_log(self, *, after: int = -1) -> set[str]:
        old = {path for version, path in self.taken_out if version > after and self.commits[version] > KEPT_HOURS}
        return {path for path in old if not self.is_required(path)}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "remove", "mark", "change", "restore", "checkpoint"]),
        st.integers(0, 50),
        # No sum of these ends exactly where the retention does, as its end moves while the test runs.
        st.sampled_from([0.37, 20.0, 70.0]),
    ),
    max_size=14,
)


def apply_steps(life: TableHistory, steps: list[tuple[str, int, float]]) -> None:
    for step, number, hours in steps:
        life.hours_ago = max(1.0, life.hours_ago - hours)
        files = sorted(life.live)
        if step == "checkpoint" and len(life.commits) > 1:
            life.table().create_checkpoint()
        elif step == "add":
            life.add(VALUES[number % len(VALUES)])
        elif step == "change":
            life.change()
        elif step == "restore" and life.back:
            life.restore(life.back.pop(number % len(life.back)))
        elif step in ("remove", "mark") and files:
            getattr(life, step)(files[number % len(files)])


def ages(life: TableHistory) -> dict[str, float]:
    listed = (path for path in life.folder.rglob("*") if path.is_file())
    kept = ((path.relative_to(life.folder).as_posix(), path.stat().st_mtime) for path in listed)
    return {path: (time.time() - at) / 3600 for path, at in kept if not path.startswith("_delta_log/")}


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_candidates_are_the_files_of_no_retained_version(steps: list[tuple[str, int, float]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        life = TableHistory(Path(folder))
        apply_steps(life, steps)
        for age in (100, 300):
            for name in (
                "dead%20.parquet",
                "_tmp/dead",
                "_day=a%20b/.dead.crc",
                "_day=_under/dead",
                "_change_data/dead",
            ):
                life.write(f"{name}{age}", hours_ago=age)

        listed = candidates_by_listing(life.lake, KEY, life.table(), before_ms=life.before_ms)
        logged = candidates_by_log(life.lake, KEY, life.table(), before_ms=life.before_ms)

        assert set(listed.files) == life.candidates_by_listing(ages(life))
        assert set(logged.files) == life.candidates_by_log()
        assert listed.bytes == 10 * len(listed.files)
        old = [version for version, hours in enumerate(life.commits) if hours > KEPT_HOURS]
        assert listed.up_to_version == logged.up_to_version == max(old)


@pytest.fixture
def life(tmp_path: Path) -> TableHistory:
    return TableHistory(tmp_path)


def test_a_vector_is_kept_with_its_file_and_removed_after_the_retention(life: TableHistory) -> None:
    life.add("plain")
    (path,) = life.live
    life.mark(path)
    (first,) = life.folder.glob("*.bin")

    def go() -> set[str]:
        return set(candidates_by_listing(life.lake, KEY, life.table(), before_ms=life.before_ms).files)

    assert go() == set()
    life.hours_ago = 300
    life.mark(path)
    assert go() == {first.name}


def test_vacuum_by_log_continues_after_the_last_one_and_needs_the_commits_since(life: TableHistory) -> None:
    for _ in range(3):
        life.add("a b")
    first, second, third = sorted(life.live)
    objects = open_objects(life.lake.storage)
    life.remove(first)
    life.remove(second)
    record_vacuumed_version(life.lake, objects, KEY, 4)
    record_vacuumed_version(life.lake, objects, KEY, 2)

    assert set(candidates_by_log(life.lake, KEY, life.table(), before_ms=life.before_ms).files) == {second}

    life.table().create_checkpoint()
    for version in range(5):
        (life.folder / "_delta_log" / f"{version:020d}.json").unlink()
    assert set(candidates_by_log(life.lake, KEY, life.table(), before_ms=life.before_ms).files) == {second}
    (life.folder / "_delta_log" / "_last_vacuum_info").write_text("{}")
    with pytest.raises(LogTooShort):
        candidates_by_log(life.lake, KEY, life.table(), before_ms=life.before_ms)
    assert third not in candidates_by_listing(life.lake, KEY, life.table(), before_ms=life.before_ms).files


def test_a_table_with_unsupported_features_is_left_to_spark(life: TableHistory) -> None:
    life.commit({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"],
                              "writerFeatures": ["deletionVectors", "inCommitTimestamp"]}})  # fmt: skip

    with pytest.raises(SparkRequired, match="the feature inCommitTimestamp"):
        candidates_by_listing(life.lake, KEY, life.table(), before_ms=life.before_ms)


@pytest.mark.parametrize("path", ["s3a://other/part.parquet", "file:/other/part.parquet", "/other/part.parquet"])
def test_a_table_with_absolute_paths_is_left_to_spark(life: TableHistory, path: str) -> None:
    file = {"path": path, "partitionValues": {"_day": "x"}, "size": 1, "modificationTime": 1, "dataChange": True}
    life.commit({"add": file})

    with pytest.raises(SparkRequired, match="an absolute path"):
        candidates_by_log(life.lake, KEY, life.table(), before_ms=life.before_ms)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(FOREIGN_STEPS, max_size=14), features=st.sampled_from([(), ("deletionVectors",), ("v2Checkpoint",)])
)
def test_no_file_of_a_foreign_table_that_is_in_use_can_be_removed(
    steps: list[tuple[Any, Any, Any]], features: tuple[str, ...]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = LogModel(Path(folder), features=features)
        has_version_2 = features == ("v2Checkpoint",)
        apply_foreign_steps(model, [step for step in steps if has_version_2 or not str(step[1]).startswith("v2")])
        later = int(time.time() * 1000) + 3_600_000
        opened = present(model.lake.open(KEY))
        try:
            listed = candidates_by_listing(model.lake, KEY, opened, before_ms=later)
        except SparkRequired:
            assert features == ("v2Checkpoint",)
            return

        assert not set(listed.files) & set(model.now.rows)
        assert set(listed.files) == set(model.actions) - set(model.now.rows) - (model.undated & listed.removed_paths)
        with contextlib.suppress(LogTooShort):
            logged = candidates_by_log(model.lake, KEY, opened, before_ms=later)
            assert set(logged.files) <= set(listed.files)


def test_a_removal_without_time_is_as_old_as_its_commit(tmp_path: Path) -> None:
    model = LogModel(tmp_path)
    early, late, undated = (model.add(1) for _ in range(3))
    now_ms = int(time.time() * 1000)
    model.remove(early, is_dated=False, info={"timestamp": now_ms - 400 * 3_600_000})
    model.remove(late, is_dated=False, info={"inCommitTimestamp": now_ms - 3_600_000, "timestamp": 1})
    model.remove(undated, is_dated=False)
    opened = present(model.lake.open(KEY))
    for name in (early, late, undated):
        os.utime(model.folder / name, (1_600_000_000,) * 2)
    for commit in model.log.iterdir():
        os.utime(commit, (1_600_000_000,) * 2)

    for candidates in (candidates_by_listing, candidates_by_log):
        assert set(candidates(model.lake, KEY, opened, before_ms=now_ms - 200 * 3_600_000).files) == {early}


EVENTS_KEY = "tables/shop/events"
SCHEMA = pa.schema([("value", pa.int64())])


def fill(lake: Lake, *, retention: str = "interval 7 days") -> None:
    made = user_metadata(pipeline="shop", batch=1, operation="ingest")
    table = lake.ensure(
        EVENTS_KEY, SCHEMA, user_metadata=made, properties={"delta.deletedFileRetentionDuration": retention}
    )
    for batch in (1, 2):
        rows = pa.table({"value": [batch]}, schema=SCHEMA)
        lake.append(table, EVENTS_KEY, rows, step=Step("shop/1", batch), user_metadata=made)


def orphan(lake: Lake, name: str, size: int, *, age_hours: float) -> None:
    path = Path(lake.storage.prefix, EVENTS_KEY, name)
    path.write_bytes(b"x" * size)
    written = time.time() - age_hours * 3600
    os.utime(path, (written, written))


def test_old_orphans_are_counted_and_young_ones_and_live_files_are_not(lake: Lake) -> None:
    fill(lake)
    orphan(lake, "old.parquet", 300, age_hours=200)
    orphan(lake, "older.parquet", 50, age_hours=400)
    orphan(lake, "young.parquet", 7, age_hours=100)
    for live in Path(lake.storage.prefix, EVENTS_KEY).glob("part-*.parquet"):
        os.utime(live, (0, 0))

    found = count_unreferenced(lake, EVENTS_KEY)

    assert found is not None
    assert (found.files, found.bytes) == (2, 350)


def test_a_large_table_is_not_listed(lake: Lake) -> None:
    fill(lake)
    orphan(lake, "old.parquet", 10, age_hours=200)

    assert count_unreferenced(lake, EVENTS_KEY, limit=1) is None
    assert count_unreferenced(lake, EVENTS_KEY, limit=2) is not None
    assert count_unreferenced(lake, "tables/shop/none") is None


@pytest.mark.parametrize("max_requests", [1_000, 0])
def test_a_file_of_another_size_than_the_log_says_is_as_missing_as_one_that_does_not_exist(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, max_requests: int
) -> None:
    monkeypatch.setattr(protected_files, "_MAX_STAT_REQUESTS", max_requests)
    fill(lake)
    fill(lake)
    files = state_at(lake, lake.objects, EVENTS_KEY).files
    gone, broken, *_ = sorted(path for path, _vector in files)
    assert find_missing_files(lake, EVENTS_KEY, files) == []

    Path(lake.storage.prefix, EVENTS_KEY, gone).unlink()
    Path(lake.storage.prefix, EVENTS_KEY, broken).write_bytes(b"not a Parquet file")
    assert find_missing_files(lake, EVENTS_KEY, files) == [gone, broken]


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("interval 7 days", 168),
        ("interval 1 week", 168),
        ("interval 240 hours", 240),
        ("2 days", 48),
        ("interval 30 days 12 hours", 732),
        ("INTERVAL 1 week 1 day 30 minutes", 193),
        ("interval 90 minutes", 2),
        ("interval 172800 seconds", 48),
        ("interval 1 months", 744),
        ("a fortnight", 878_400),
        ("interval 30 days and 12 hours", 878_400),
    ],
)
def test_the_retention_of_removed_files_is_the_tables_property(lake: Lake, text: str, hours: int) -> None:
    fill(lake, retention=text)
    table = present(lake.open(EVENTS_KEY))

    assert table_retention_hours(table) == hours
