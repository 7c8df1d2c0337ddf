"""A purge sees rows deleted by a deletion vector, and tokens in pages, dictionaries, footers and compressed text."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.control.objects import LocalObjects
from deltaworks.privacy.erasure import scan
from deltaworks.privacy.erasure.scan import scan_object
from deltaworks.privacy.erasure.token_search import TokenSearch
from deltaworks.tables.lake import arrow_path
from deltaworks.tables.log import TableState, file_id, state_at
from deltaworks.tables.log_writer import remove_action, write_commit
from deltaworks.tables.rewrite import DataFiles
from deltaworks.testing import local_lake
from tests.unit.privacy.erasure.test_purge_table import KEY, STEP, Table, row, token
from tests.unit.tables.deletion_vector_encoder import encode_vector, in_file, z85

PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors", "appendOnly", "invariants"],
}


class MarkedTable(Table):
    """A table whose rows are deleted as Spark deletes them where vectors are on: marked beside their files."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = Path(arrow_path(self.lake.storage, KEY))
        assert write_commit(self.objects, KEY, 1, [{"protocol": PROTOCOL}])

    @property
    def state(self) -> TableState:
        return state_at(self.lake, self.objects, KEY)

    def delete(self, ids: Collection[int], *, in_log: bool = False) -> None:
        """Mark the rows of these ids, in the log itself or in one file for all of them."""
        state, marked = self.state, []
        for added in state.files.values():
            rows = pq.ParquetFile(self.root / file_id(added)[0]).read().column("id").to_pylist()
            positions = {at for at, number in enumerate(rows) if number in ids}
            if positions:
                marked.append((added, positions))
        vectors = [encode_vector(positions) for _, positions in marked]
        name = z85(bytes(range(16)))
        data, offsets = in_file(*vectors)
        if marked and not in_log:
            (self.root / "deletion_vector_00010203-0405-0607-0809-0a0b0c0d0e0f.bin").write_bytes(data)
        actions: list[dict[str, Any]] = []
        for (added, positions), vector, offset in zip(marked, vectors, offsets, strict=True):
            stored = {"sizeInBytes": len(vector), "cardinality": len(positions)}
            stored |= (
                {"storageType": "i", "pathOrInlineDv": z85(vector)}
                if in_log
                else {"storageType": "u", "pathOrInlineDv": name, "offset": offset}
            )
            actions += [remove_action(added, 1_700_000_000_000), {"add": {**added, "deletionVector": stored}}]
        if actions:
            assert write_commit(self.objects, KEY, state.version + 1, actions)

    def ids(self) -> list[int]:
        """The ids of all rows that are not marked, read as the protocol says."""
        state = self.state
        files = DataFiles(self.lake, state)
        return sorted(
            number
            for added in state.files.values()
            for batch in files.read(added)
            for number in batch.column("id").to_pylist()
        )

    def leaks(self, person: str) -> list[str]:
        """The files of the newest version in which a token of somebody stands, whatever a vector says."""
        search = TokenSearch([token(person)])
        return [name for name, _ in self.state.files if scan_object(self.lake, f"{KEY}/{name}", search).tokens]


@pytest.fixture
def table(tmp_path: Path) -> MarkedTable:
    table = MarkedTable(tmp_path)
    assert isinstance(table.objects, LocalObjects)
    return table


@pytest.mark.parametrize("in_log", [False, True])
def test_deleted_rows_are_not_counted_stay_deleted_and_are_purged(table: MarkedTable, in_log: bool) -> None:
    table.add(
        [row(1, "ann", "player", 0), row(2, "ann", "raw", 0), row(3, "bob", "player", 0), row(4, "bob", "raw", 0)]
    )
    table.delete({1, 3}, in_log=in_log)

    purge = table.purger(r1=["ann"]).purge(STEP)

    assert table.ids() == [4]
    assert (purge.rows_before, purge.erased_before, purge.by_request) == (2, 1, {"r1": 1})
    assert (purge.rows_after, purge.erased_after, purge.other_rows_after) == (1, 0, 1)
    assert table.leaks("ann") == []


def test_a_file_with_only_deleted_hits_is_rewritten(table: MarkedTable) -> None:
    table.add([row(1, "ann", "player", 0), row(2, "bob", "player", 0)])
    table.add([row(3, "bob", "player", 1)])
    table.delete({1})
    assert len(table.leaks("ann")) == 1

    purge = table.purger(r1=["ann"]).purge(STEP)

    assert table.ids() == [2, 3]
    assert table.leaks("ann") == []
    assert (len(purge.removed_files), purge.erased_before, purge.rows_before, purge.rows_after) == (1, 0, 2, 2)
    assert (purge.erased_after, purge.other_rows_after, purge.other_rows_before) == (0, 2, 2)


def test_a_file_of_deleted_rows_only_is_removed(table: MarkedTable) -> None:
    table.add([row(1, "ann", "player", 0)])
    table.add([row(2, "bob", "player", 0)])
    table.delete({1})
    table.purger(r1=["ann"]).purge(STEP)
    assert (table.ids(), table.leaks("ann"), len(table.state.files)) == ([2], [], 1)


@settings(max_examples=12, deadline=None)
@given(
    people=st.lists(st.sampled_from([None, "ann", "bob"]), min_size=1, max_size=12),
    marked=st.sets(st.integers(0, 11)),
    mode=st.sampled_from(["rows", "identity"]),
    in_log=st.booleans(),
)
def test_rows_deleted_by_a_vector_never_reappear(
    people: list[str | None], marked: set[int], mode: Any, in_log: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = MarkedTable(tmp_path_factory.mktemp("lake"))
    table.add([row(number, person, "raw", number % 2) for number, person in enumerate(people)])
    table.delete(marked, in_log=in_log)
    alive = [number for number in range(len(people)) if number not in marked]
    stay = [number for number in alive if mode == "identity" or people[number] != "ann"]

    purge = table.purger(r1=["ann"]).purge(STEP, mode=mode)

    assert table.ids() == stay
    assert table.leaks("ann") == []
    assert (purge.rows_before, purge.rows_after) == (len(alive), len(stay))
    assert purge.other_rows_before == purge.other_rows_after == sum(people[number] != "ann" for number in alive)


def test_rows_are_counted_by_content_and_not_by_statistics(table: MarkedTable) -> None:
    """A file of another writer may have no statistics, and then says nothing of how many rows it has."""
    table.add([row(1, "ann", "player", 0), row(2, "bob", "player", 0), row(3, "bob", "player", 0)])
    (added,) = table.state.files.values()
    without = {name: value for name, value in added.items() if name != "stats"}
    actions = [remove_action(added, 1_700_000_000_000), {"add": {**without, "dataChange": True}}]
    assert write_commit(table.objects, KEY, table.state.version + 1, actions)
    assert json.loads(next(iter(table.state.files.values())).get("stats") or "{}") == {}

    purge = table.purger(r1=["ann"]).purge(STEP)

    assert (purge.rows_before, purge.erased_before, purge.rows_after, purge.other_rows_after) == (3, 1, 2, 2)


ANN, BOB = token("ann"), token("bob")


def found(folder: Path, data: bytes, name: str = "object") -> frozenset[str]:
    (folder / name).write_bytes(data)
    return scan_object(local_lake(folder), name, TokenSearch([ANN])).tokens


def parquet(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def test_compressed_pages_are_scanned(tmp_path: Path) -> None:
    rows = pa.table({"player": [BOB, ANN] * 500, "raw": [f'{{"n": {n}}}' for n in range(1000)]})
    data = parquet(rows, compression="zstd", write_statistics=False, use_dictionary=False)
    assert ANN.encode() not in data, "or this would show nothing"
    assert found(tmp_path, data) == {ANN}


@pytest.mark.parametrize("column", ["list", "struct", "map"])
def test_nested_columns_are_scanned(tmp_path: Path, column: str) -> None:
    values = {
        "list": pa.array([[BOB], [BOB, f"about {ANN}."]]),
        "struct": pa.array([{"who": None}, {"who": ANN}]),
        "map": pa.array([[("a", "b")], [(ANN, "b")]], pa.map_(pa.string(), pa.string())),
    }
    data = parquet(pa.table({"c": values[column]}), compression="zstd", write_statistics=False)
    assert found(tmp_path, data) == {ANN}


def test_unused_dictionary_entries_are_scanned(tmp_path: Path) -> None:
    codes = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int32()), pa.array([BOB, ANN]))
    data = parquet(pa.table({"c": codes}), compression="zstd", write_statistics=False, store_schema=False)
    assert pq.read_table(io.BytesIO(data)).column("c").to_pylist() == [BOB, BOB]
    assert found(tmp_path, data) == {ANN}


def test_footer_statistics_and_metadata_are_scanned(tmp_path: Path) -> None:
    noted = pa.table({"n": [1]}).replace_schema_metadata({"note": f"written for {ANN}"})
    assert found(tmp_path, parquet(noted, compression="zstd")) == {ANN}


def test_gzip_members_and_truncated_gzip_are_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_CHUNK_BYTES", 64)
    lines = gzip.compress(b"x" * 50) + gzip.compress(f'y{{"player": "{ANN}"}}'.encode() * 3)
    assert found(tmp_path, lines) == {ANN}
    for shift in range(64):
        assert found(tmp_path, b"-" * shift + ANN.encode() + b"-" * 40) == {ANN}


@pytest.mark.parametrize("half", ["p1_", ANN[:20], BOB[:-1], f"{BOB[:-1]} p1_{'a' * 25}"])
def test_a_token_directly_after_a_partial_one_is_found(tmp_path: Path, half: str) -> None:
    assert found(tmp_path, f"{half}{ANN}".encode()) == {ANN}
    search = TokenSearch([ANN])
    texts = pa.record_batch({"raw": [BOB[:14], f"{'a' * 14}{ANN}", f"{half}{ANN}", BOB]})
    assert search.matching_rows(texts).tolist() == [False, True, True, False]


def test_zstd_after_a_frame_that_it_ignores_is_scanned(tmp_path: Path) -> None:
    skippable = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"any"
    assert found(tmp_path, skippable + pa.compress(ANN.encode(), "zstd", asbytes=True)) == {ANN}


def test_zstd_and_corrupt_zstd_are_scanned(tmp_path: Path) -> None:
    assert found(tmp_path, pa.compress(ANN.encode(), "zstd", asbytes=True)) == {ANN}
    torn = gzip.compress(b"z" * 100_000)[:-20] + ANN.encode()
    with pytest.raises((zlib.error, EOFError, OSError)):
        gzip.decompress(torn)
    assert found(tmp_path, torn) == {ANN}


def test_other_tokens_are_not_found(tmp_path: Path) -> None:
    assert found(tmp_path, BOB.encode() + ANN.encode()[:-1]) == frozenset()
