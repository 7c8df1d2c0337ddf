"""Replacing the rows of a seq range without Spark changes nothing else in the table, despite concurrent commits."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltaworks.control.objects import open_objects
from deltaworks.errors import ConcurrencyError, TransientError
from deltaworks.recovery.reprocess.replace_rows import DirectReplacer, ReplaceResult
from deltaworks.recovery.reprocess.selection import SeqRanges
from deltaworks.tables import files_commit
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.testing import local_storage, present

KEY = "shop/orders"
SCHEMA = pa.schema(
    [("_seq", pa.int64()), ("_position", pa.int32()), ("event_date", pa.date32()), ("level", pa.string())]
)
FIRST = dt.date(2026, 1, 1)
Row = dict[str, Any]


def row(seq: int, position: int, day: int | None, level: str) -> Row:
    date = None if day is None else FIRST + dt.timedelta(days=day)
    return {"_seq": seq, "_position": position, "event_date": date, "level": level}


class Stage:
    """One table on local disk, partitioned by its date, and rows that are staged for it."""

    def __init__(self, root: Path, **properties: str) -> None:
        self.root = root
        storage = local_storage(root)
        self.lake, self.objects = Lake(storage), open_objects(storage)
        self.lake.ensure(KEY, SCHEMA, user_metadata="{}", partition_by=["event_date"], properties=properties)
        self.batches = self.attempts = 0

    def append(self, *rows: Row) -> None:
        self.batches += 1
        table = present(self.lake.open(KEY))
        step = Step("shop/orders", self.batches)
        self.lake.append(table, KEY, pa.Table.from_pylist(list(rows), schema=SCHEMA), step=step, user_metadata="{}")

    def staged(self, *rows: Row, schema: pa.Schema = SCHEMA) -> list[str]:
        if not rows:
            return []
        (self.root / "staging").mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), self.root / "staging" / "a.parquet")
        return ["staging/a.parquet"]

    def replace(
        self,
        ranges: SeqRanges,
        *rows: Row,
        before_commit: Callable[[], None] = lambda: None,
        most_bytes: int = 1 << 20,
        step: int = 1,
    ) -> ReplaceResult | None:
        replacer = DirectReplacer(self.lake, self.objects, KEY, max_bytes=most_bytes)
        files = self.staged(*rows)
        return replacer.replace(
            ranges, files, step=Step("again", step), user_metadata="{}", before_commit=before_commit
        )

    def rows(self) -> Counter[tuple[Any, ...]]:
        return counted(present(self.lake.rows(KEY)).to_pylist())

    def version(self) -> int:
        return int(present(self.lake.open(KEY)).version())

    def strays(self) -> set[str]:
        """Data files that the table does not have and no commit has ever named."""
        log = "".join(path.read_text() for path in (self.root / KEY / "_delta_log").glob("*.json"))
        return {path.name for path in (self.root / KEY).rglob("*.parquet") if path.name not in log}


def counted(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    return Counter((one["_seq"], one["_position"], one["event_date"], one["level"]) for one in rows)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path)
    made.append(row(1, 0, 0, "a"), row(1, 1, 1, "b"), row(2, 0, 0, "c"))
    made.append(row(3, 0, 0, "d"), row(3, 1, None, "e"), row(4, 0, 2, "f"))
    return made


@pytest.mark.parametrize("seed", range(12))
def test_any_replacement_leaves_what_a_plain_list_would_have(tmp_path: Path, seed: int) -> None:
    pick = random.Random(seed)
    stage, present = Stage(tmp_path), list[Row]()

    def some(seqs: list[int]) -> list[Row]:
        return [
            row(seq, at, pick.choice([0, 1, 2, None]), str(pick.random()))
            for seq in seqs
            for at in range(pick.randrange(3))
        ]

    for batch in range(pick.randrange(1, 5)):
        fresh = some(list(range(batch * 4, batch * 4 + 4)))
        present += fresh
        stage.append(*fresh)
    chosen = sorted(pick.sample(range(20), pick.randrange(1, 8)))
    ranges, new = SeqRanges.from_seqs(chosen), some(chosen)

    done = stage.replace(ranges, *new)

    assert stage.rows() == counted([one for one in present if one["_seq"] not in ranges] + new)
    assert done is not None
    assert (done.rows_out, done.rows_in) == (sum(one["_seq"] in ranges for one in present), len(new))
    assert not stage.strays()


def test_a_replacement_says_which_dates_it_touched_and_reads_no_file_beside_them(stage: Stage) -> None:
    before = {path: path.stat().st_mtime_ns for path in (stage.root / KEY).rglob("*.parquet")}

    done = stage.replace(SeqRanges(((1, 1),)), row(1, 0, 1, "A"))

    assert done is not None
    assert (done.outcome, done.dates) == ("committed", ("2026-01-01", "2026-01-02"))
    table = present(stage.lake.open(KEY))
    assert len(set(table.file_uris()) & {str(path) for path in before}) == 3, "three of five files stay as they are"


def test_a_batch_that_lands_just_before_the_commit_is_kept(stage: Stage) -> None:
    late = [row(5, 0, 0, "late")]

    def land_once() -> None:
        stage.attempts += 1
        if stage.attempts == 1:
            stage.append(*late)

    done = stage.replace(SeqRanges(((1, 3),)), row(2, 0, 0, "C"), before_commit=land_once)

    assert stage.rows() == counted([row(2, 0, 0, "C"), row(4, 0, 2, "f"), *late])
    assert done is not None
    assert (stage.attempts, done.rows_out, stage.strays()) == (2, 5, set())


def test_a_replacement_that_has_landed_is_not_made_again(stage: Stage) -> None:
    stage.replace(SeqRanges(((1, 1),)), row(1, 0, 0, "A"))
    before, version = stage.rows(), stage.version()

    again = stage.replace(SeqRanges(((1, 1),)), row(1, 0, 0, "B"))

    assert again is not None
    assert (again.outcome, stage.rows(), stage.version()) == ("already_committed", before, version)


def test_nothing_is_committed_where_there_is_nothing_to_replace(stage: Stage) -> None:
    version = stage.version()

    done = stage.replace(SeqRanges(((8, 9),)))

    assert done is not None
    assert (done.outcome, stage.version()) == ("unchanged", version)


def test_a_turn_that_is_lost_ends_it_with_the_table_and_its_folder_as_they_were(stage: Stage) -> None:
    def lost() -> None:
        raise ConcurrencyError("TURN_LOST", "lost", hint="")

    before, version = stage.rows(), stage.version()

    with pytest.raises(ConcurrencyError, match="TURN_LOST"):
        stage.replace(SeqRanges(((1, 3),)), row(2, 0, 0, "C"), before_commit=lost)

    assert (stage.rows(), stage.version(), stage.strays()) == (before, version, set())


@pytest.mark.parametrize("most_bytes", [100, 2_500], ids=["staged", "rewritten"])
def test_what_is_too_large_is_left_to_spark(stage: Stage, most_bytes: int) -> None:
    version = stage.version()

    assert stage.replace(SeqRanges(((1, 4),)), row(2, 0, 0, "C"), most_bytes=most_bytes) is None
    assert (stage.version(), stage.strays()) == (version, set())


@pytest.mark.parametrize("name", ["delta.enableChangeDataFeed", "delta.appendOnly"])
def test_a_table_whose_promises_only_spark_keeps_is_left_to_it(tmp_path: Path, name: str) -> None:
    stage = Stage(tmp_path, **{name: "true"})
    stage.append(row(1, 0, 0, "a"))

    assert stage.replace(SeqRanges(((1, 1),))) is None
    assert stage.rows() == counted([row(1, 0, 0, "a")])


def test_rows_with_a_column_that_the_table_lacks_are_left_to_spark(stage: Stage) -> None:
    wider = SCHEMA.append(pa.field("mood", pa.string()))
    files = stage.staged(row(1, 0, 0, "A") | {"mood": "good"}, schema=wider)
    replacer = DirectReplacer(stage.lake, stage.objects, KEY)

    assert replacer.replace(SeqRanges(((1, 1),)), files, step=Step("again", 1), user_metadata="{}") is None


@pytest.mark.parametrize("raises", [False, True], ids=["refused", "failed"])
def test_a_commit_whose_reply_was_lost_keeps_its_files(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    put, puts = files_commit.write_commit, list[bool]()

    def losing_the_first(*arguments: Any) -> bool:
        puts.append(put(*arguments))
        if raises:
            raise TransientError("STORAGE_UNREACHABLE", "lost")
        return len(puts) > 1 and puts[-1]

    monkeypatch.setattr(files_commit, "write_commit", losing_the_first)
    expected = counted(
        [row(1, 0, 0, "A"), row(2, 0, 0, "c"), row(3, 0, 0, "d"), row(3, 1, None, "e"), row(4, 0, 2, "f")]
    )

    if raises:
        with pytest.raises(TransientError, match="lost"):
            stage.replace(SeqRanges(((1, 1),)), row(1, 0, 0, "A"))
    else:
        assert present(stage.replace(SeqRanges(((1, 1),)), row(1, 0, 0, "A"))).outcome == "already_committed"
    assert (puts, stage.rows(), stage.strays()) == ([True], expected, set())
