"""Compaction of small partitions without Spark: changes no rows, other partitions or writers' commits."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import Field
from deltalake.schema import PrimitiveType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.provenance import OPTIMIZE, user_metadata
from deltaworks.mutations.bounds import read_arrivals
from deltaworks.tables import compaction
from deltaworks.tables.arrow_types import cast_values
from deltaworks.tables.changes import Partition, changed_partitions, rewritten_partitions
from deltaworks.tables.compaction import CompactionOutcome, compact_partitions
from deltaworks.tables.files import write_file
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import commit_history, read_commits
from deltaworks.testing import append_rows, local_lake, present
from tests.examples import examples
from tests.unit.maintenance.table_data import DAYS, append, make

GROUP = "7d1c"
METADATA = user_metadata(pipeline="shop", batch=1, operation=OPTIMIZE, group=GROUP)
MIB = 1 << 20


@pytest.fixture
def objects(lake: Lake) -> ObjectStore:
    return open_objects(lake.storage)


@pytest.fixture
def key(lake: Lake) -> str:
    return make(lake, "shop", "orders", files=4, days=3)


def compact(lake: Lake, key: str, *days: int, **options: Any) -> CompactionOutcome:
    places = [DAYS[day] for day in days]
    settings = {"below_bytes": 16 * MIB, "user_metadata": METADATA, **options}
    return compact_partitions(lake, open_objects(lake.storage), key, places, **settings)


def rows(lake: Lake, key: str) -> list[str]:
    table = present(lake.rows(key))
    return sorted(json.dumps(row, sort_keys=True, default=str) for row in table.to_pylist())


def files(lake: Lake, key: str) -> dict[str, list[str]]:
    table = present(lake.open(key))
    adds = pa.table(table.get_add_actions(flatten=True))
    by_day: dict[str, list[str]] = {}
    for day, path in zip(adds.column("partition.event_date").to_pylist(), adds.column("path").to_pylist(), strict=True):
        by_day.setdefault(str(day), []).append(path)
    return {day: sorted(paths) for day, paths in by_day.items()}


def on_disk(lake: Lake, key: str) -> set[str]:
    root = Path(arrow_path(lake.storage, key))
    return {str(path.relative_to(root)) for path in root.rglob("*.parquet") if "_delta_log" not in path.parts}


def test_the_files_of_each_partition_become_one_in_one_commit_and_a_second_run_does_nothing(
    lake: Lake, key: str
) -> None:
    before, version = rows(lake, key), lake.open(key).version()  # type: ignore[union-attr]

    outcome = compact(lake, key, 0, 1)
    again = compact(lake, key, 0, 1)

    assert (outcome.compacted, outcome.version, outcome.unsupported) == (DAYS[:2], version + 1, {})
    assert [len(paths) for _, paths in sorted(files(lake, key).items())] == [1, 1, 4]
    assert rows(lake, key) == before
    assert again == CompactionOutcome()


def test_a_table_without_partitions_is_one_partition(lake: Lake) -> None:
    columns = pa.schema([("id", pa.int64())])
    for number in range(4):
        row = {"id": number}
        append_rows(lake, "tables/shop/flat", [row], schema=columns, number=number + 1, user_metadata=METADATA)

    objects = open_objects(lake.storage)
    done = compact_partitions(lake, objects, "tables/shop/flat", [()], below_bytes=MIB, user_metadata=METADATA)

    assert done.compacted == ((),)
    assert len(lake.open("tables/shop/flat").file_uris()) == 1  # type: ignore[union-attr]
    assert rows(lake, "tables/shop/flat") == [f'{{"id": {number}}}' for number in range(4)]


def test_partition_columns_stored_in_files_are_ignored(lake: Lake, key: str) -> None:
    before = rows(lake, key)
    for path in files(lake, key)["2026-01-01"]:
        whole = Path(arrow_path(lake.storage, key)) / path
        body = pq.read_table(whole, partitioning=None)
        pq.write_table(body.append_column("event_date", pa.array([dt.date(2026, 1, 1)] * body.num_rows)), whole)

    outcome = compact(lake, key, 0)

    assert (outcome.compacted, outcome.unsupported) == ((DAYS[0],), {})
    assert rows(lake, key) == before


def test_streams_read_no_change_from_a_compaction(lake: Lake, key: str) -> None:
    table = present(lake.open(key))
    before = table.version()
    compact(lake, key, 0, 1, 2)
    table.update_incremental()

    (commit,) = commit_history(lake, key, newest=table.version(), limit=1)
    ((_, actions),) = read_commits(lake, key, [table.version()])
    moved = [action.get("add") or action.get("remove") for action in actions or () if "commitInfo" not in action]

    assert (commit.operation, commit.changes_rows, commit.metadata["operation"]) == ("OPTIMIZE", False, "optimize")
    assert commit.metrics["numRemovedFiles"], commit.metrics["numAddedFiles"] == ("12", "3")
    assert {one["dataChange"] for one in moved if one} == {False}
    assert not changed_partitions(lake, key, after_version=before, up_to_version=table.version())
    assert read_arrivals(lake, key, after=before, up_to=table.version()).rows == 0
    assert [(one.partition, one.files_before, one.files) for one in _rewritten(lake, key, before)] == [
        (day, 4, 1) for day in DAYS[:3]
    ]


def _rewritten(lake: Lake, key: str, before: int) -> Any:
    return rewritten_partitions(lake, key, after_version=before, group=GROUP)


def test_concurrent_appends_do_not_conflict(lake: Lake, key: str) -> None:
    tries = []

    def another_batch_lands() -> None:
        if len(tries) < 3:
            append(lake, key, 1, days=(0, 1))
        tries.append(None)

    outcome = compact(lake, key, 0, 1, before_commit=another_batch_lands)

    assert (len(tries), outcome.compacted, outcome.conflicting) == (4, DAYS[:2], ())
    assert [len(paths) for _, paths in sorted(files(lake, key).items())] == [4, 4, 4]
    assert len(rows(lake, key)) == 3 * 4 * 10 + 2 * 3 * 10


def test_a_partition_with_a_concurrent_change_is_skipped_and_the_others_are_committed(lake: Lake, key: str) -> None:
    once = []

    def a_delete_lands() -> None:
        if not once:
            table = present(lake.open(key))
            table.delete("event_date = CAST('2026-01-01' AS DATE) AND id = 'id0'")
        once.append(None)

    outcome = compact(lake, key, 0, 1, before_commit=a_delete_lands)

    assert (outcome.compacted, outcome.conflicting) == ((DAYS[1],), (DAYS[0],))
    assert [len(paths) for _, paths in sorted(files(lake, key).items())][1:] == [1, 4]
    assert sum('"2026-01-01"' in row and '"id0"' in row for row in rows(lake, key)) == 0, "the delete stands"
    assert len(rows(lake, key)) == 120 - 4
    named = {path for paths in files(lake, key).values() for path in paths}
    unnamed = on_disk(lake, key) - named
    assert len([path for path in unnamed if "zstd" in path]) == 4 + 4, "what was taken out stays for earlier versions"


def test_nothing_is_committed_after_a_concurrent_schema_change(lake: Lake, key: str) -> None:
    once = []

    def a_column_comes() -> None:
        if not once:
            table = present(lake.open(key))
            table.alter.add_columns([Field("late", PrimitiveType("string"), nullable=True)])
        once.append(None)

    outcome = compact(lake, key, 0, before_commit=a_column_comes)

    assert (outcome.version, outcome.conflicting) == (None, (DAYS[0],))
    assert len(files(lake, key)["2026-01-01"]) == 4
    assert len(on_disk(lake, key)) == 12, "what it had written is gone"


def test_an_error_of_before_commit_ends_the_work_without_a_commit(lake: Lake, key: str) -> None:
    version = lake.open(key).version()  # type: ignore[union-attr]

    def turn_is_lost() -> None:
        raise RuntimeError("the turn is lost")

    with pytest.raises(RuntimeError, match="the turn is lost"):
        compact(lake, key, 0, before_commit=turn_is_lost)

    assert lake.open(key).version() == version  # type: ignore[union-attr]


def test_a_partition_above_the_memory_limit_is_left_to_spark(
    lake: Lake, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MAX_MEMORY_BYTES", 100)

    outcome = compact(lake, key, 0)

    assert "more than 100 bytes of memory" in outcome.unsupported[DAYS[0]]
    assert (outcome.version, outcome.compacted) == (None, ())


def test_a_file_with_another_row_count_than_its_log_is_left_unchanged(lake: Lake, key: str) -> None:
    path = files(lake, key)["2026-01-01"][0]
    whole = Path(arrow_path(lake.storage, key)) / path
    pq.write_table(pq.read_table(whole, partitioning=None).slice(1), whole)

    outcome = compact(lake, key, 0, 1)

    assert "has 9 rows, but the log has 10" in outcome.unsupported[DAYS[0]]
    assert outcome.compacted == (DAYS[1],)


def test_a_table_with_unsupported_writer_features_is_left_to_spark(lake: Lake, key: str) -> None:
    table = present(lake.open(key))
    table.alter.add_constraint({"positive": "value >= 0"})

    assert compact(lake, key, 0).unsupported == {DAYS[0]: "the constraint delta.constraints.positive"}


def test_statistics_follow_the_tables_properties_and_files_are_skipped_by_them(lake: Lake, key: str) -> None:
    table = present(lake.open(key))
    table.alter.set_table_properties({"delta.dataSkippingStatsColumns": "value"})

    compact(lake, key, 0)

    adds = pa.table(lake.open(key).get_add_actions(flatten=True)).to_pylist()  # type: ignore[union-attr]
    (merged,) = [add for add in adds if str(add["partition.event_date"]) == "2026-01-01"]
    assert (merged["num_records"], merged["min.value"], merged["max.value"]) == (40, 0, 9)
    assert merged.get("min.id") is None, "what a table excludes is not in its log"


def test_a_checkpoint_is_written_where_one_is_due(lake: Lake, key: str) -> None:
    table = present(lake.open(key))
    table.alter.set_table_properties({"delta.checkpointInterval": str(table.version() + 2)})

    outcome = compact(lake, key, 0)

    assert (Path(arrow_path(lake.storage, key)) / f"_delta_log/{outcome.version:020d}.checkpoint.parquet").is_file()
    assert len(rows(lake, key)) == 120


def test_missing_fields_of_an_older_struct_are_null_and_a_null_struct_stays_null() -> None:
    older = pa.array([{"a": 1}, None, {"a": None}], pa.struct([("a", pa.int32())]))
    newer = pa.struct([("b", pa.string()), ("a", pa.int64())])

    assert cast_values(older, newer).to_pylist() == [{"b": None, "a": 1}, None, {"b": None, "a": None}]
    with pytest.raises(pa.ArrowInvalid, match="does not have: a"):
        cast_values(older, pa.struct([("b", pa.string())]))


VALUES = st.one_of(st.none(), st.text(max_size=40), st.sampled_from(["", "null", "%20", "ü/ß", "\U0001f600"]))
INSTANTS = st.one_of(
    st.none(),
    st.datetimes(min_value=dt.datetime(1900, 1, 1), max_value=dt.datetime(9999, 12, 30)).map(
        lambda at: at.replace(tzinfo=dt.UTC)
    ),
)
LONGS = st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1))
ROWS = st.lists(
    st.fixed_dictionaries({"id": VALUES, "at": INSTANTS, "n": LONGS}),
    min_size=1,
    max_size=6,
)
#: A file: its partition, its rows, whether it is large, and whether it was written before the last columns came.
FILES = st.lists(st.tuples(st.integers(0, 3), ROWS, st.booleans(), st.booleans()), min_size=1, max_size=14)
PLACES = ["plain", "with space", "a=b%2F", "ü"]
COLUMNS = pa.schema(
    [
        ("place", pa.string()),
        ("id", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("n", pa.int64()),
        ("tags", pa.list_(pa.string())),
        ("nested", pa.struct([("a", pa.string()), ("b", pa.int64())])),
    ]
)
OLDER = pa.schema([*list(COLUMNS)[:4], ("nested", pa.struct([("a", pa.string())]))])


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(created_files=FILES, chosen=st.sets(st.integers(0, 3)))
def test_rows_stay_the_same_and_no_file_of_another_partition_is_touched(
    tmp_path: Path, created_files: list[Any], chosen: set[int]
) -> None:
    shutil.rmtree(tmp_path / "lake", ignore_errors=True)
    lake = local_lake(tmp_path / "lake")
    table = lake.ensure("tables/shop/any", COLUMNS, user_metadata=METADATA, partition_by=["place"])
    written = []
    for place, records, _, is_older in created_files:
        full = [{**row, "place": PLACES[place], "nested": {"a": row["id"]}, "tags": [row["id"]]} for row in records]
        data = pa.Table.from_pylist(full, schema=OLDER if is_older else COLUMNS)
        partition = {"place": PLACES[place]}
        written.append(write_file(lake.filesystem, arrow_path(lake.storage, table_key()), data, partition=partition))
    table.create_write_transaction(
        [file.add_action() for file in written], mode="append", schema=table.schema(), partition_by=["place"]
    )
    before, adds_before = rows(lake, table_key()), added(lake)
    # Files are below the bound, or not, by a bound between them.
    bound = sorted(file.size for file in written)[len(written) // 2] + 1
    places: list[Partition] = [(("place", PLACES[place]),) for place in sorted(chosen)]

    outcome = compact_partitions(
        lake, open_objects(lake.storage), table_key(), places, below_bytes=bound, user_metadata=METADATA
    )

    assert (outcome.unsupported, outcome.conflicting) == ({}, ())
    assert rows(lake, table_key()) == before
    adds_after = added(lake)
    names = {PLACES[place] for place in chosen}
    for path, (place_name, size) in adds_before.items():
        if place_name not in names or size >= bound:
            assert adds_after[path] == (place_name, size)
    for name in names:
        mergeable = [size for place_name, size in adds_before.values() if place_name == name and size < bound]
        expected = len([1 for place_name, _ in adds_before.values() if place_name == name])
        expected -= len(mergeable) - 1 if len(mergeable) > 1 else 0
        assert sum(place_name == name for place_name, _ in adds_after.values()) == expected


def table_key() -> str:
    return "tables/shop/any"


def added(lake: Lake) -> dict[str, tuple[str, int]]:
    table = present(lake.open(table_key()))
    adds = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return {add["path"]: (add["partition.place"], add["size_bytes"]) for add in adds}
