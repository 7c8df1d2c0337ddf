"""Deletion vectors: row counts from logs in Spark's form, and positions equal those of a literal encoder."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltaworks.errors import ContractError
from deltaworks.maintenance.table_health.measure import table_health
from deltaworks.tables.deletion_vectors import decode_vector, deleted_positions
from deltaworks.tables.lake import Lake
from deltaworks.tables.protected_files import decode_z85, deletion_vector_path
from deltaworks.testing import present, write_files
from tests.unit.tables.deletion_vector_encoder import encode_vector, in_file, z85

KEY = "tables/shop/orders"
PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors"],
}
FIELDS = [
    {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in (("a", "long"), ("p", "string"))
]


def log(lake: Lake) -> Path:
    return Path(lake.storage.prefix, KEY, "_delta_log")


def commit(lake: Lake, version: int, *actions: dict[str, Any]) -> None:
    write_files(log(lake), {f"{version:020d}.json": "\n".join(json.dumps(action) for action in actions)})


def vector(cardinality: int) -> dict[str, Any]:
    return {"storageType": "u", "pathOrInlineDv": "x" * 20, "offset": 1, "sizeInBytes": 40, "cardinality": cardinality}


def add(path: str, partition: str, *, rows: int = 10, deleted: int = 0) -> dict[str, Any]:
    action = {
        "path": path,
        "partitionValues": {"p": partition},
        "size": 500,
        "modificationTime": 1_700_000_000_000,
        "dataChange": True,
        "stats": json.dumps({"numRecords": rows}),
    }
    return {"add": action | ({"deletionVector": vector(deleted)} if deleted else {})}


def remove(path: str) -> dict[str, Any]:
    return {"remove": {"path": path, "deletionTimestamp": 1_700_000_000_000, "dataChange": True}}


def created(lake: Lake) -> None:
    schema = json.dumps({"type": "struct", "fields": FIELDS})
    metadata = {
        "id": "x",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": ["p"],
        "configuration": {"delta.enableDeletionVectors": "true"},
        "createdTime": 0,
    }
    commit(lake, 0, {"protocol": PROTOCOL}, {"metaData": metadata}, add("p=x%2520y/a.parquet", "x y"), add("b", "z"))


def deleted_by_partition(lake: Lake) -> dict[str | None, int | None]:
    found = present(table_health(lake, KEY))
    return {dict(each.partition)["p"]: each.deletion_vector_rows for each in found.partition_health}


def test_a_delete_replaces_a_file_by_itself_with_a_vector_and_the_next_one_with_a_larger_one(lake: Lake) -> None:
    created(lake)
    assert deleted_by_partition(lake) == {"x y": 0, "z": 0}

    path = "p=x%2520y/a.parquet"
    commit(lake, 1, add(path, "x y", deleted=3), remove(path))
    commit(lake, 2, remove(path), add(path, "x y", deleted=4))
    found = table_health(lake, KEY)

    assert deleted_by_partition(lake) == {"x y": 4, "z": 0}
    assert found is not None
    assert (found.deletion_vector_rows, found.rows, found.deletion_vector_share) == (4, 20, 0.2)


def checkpoint(lake: Lake, version: int, actions: list[dict[str, Any]], name: str, hint: dict[str, Any]) -> None:
    """Writes a checkpoint in Spark's form, with `_last_checkpoint`."""
    kinds = ("add", "protocol", "metaData", "sidecar")
    rows = [{kind: action.get(kind) for kind in kinds if any(kind in each for each in actions)} for action in actions]
    target = log(lake) / name
    target.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), target)
    (log(lake) / "_last_checkpoint").write_text(json.dumps({"version": version, "size": len(rows), **hint}))


def of_the_log(lake: Lake) -> list[dict[str, Any]]:
    lines = (log(lake) / f"{0:020d}.json").read_text().splitlines()
    actions = [json.loads(line) for line in lines]
    head = [action for action in actions if "protocol" in action or "metaData" in action]
    for action in head:
        if "metaData" in action:
            action["metaData"]["configuration"] = None
            action["metaData"]["format"] = {"provider": "parquet"}
    return head


def test_vectors_are_found_in_a_checkpoint_and_in_the_commits_after_it(lake: Lake) -> None:
    created(lake)
    path = "p=x%2520y/a.parquet"
    commit(lake, 1, remove(path), add(path, "x y", deleted=3))
    table = present(lake.open(KEY))
    table.create_checkpoint()
    (log(lake) / f"{0:020d}.json").unlink()
    commit(lake, 2, remove("b"), add("b", "z", deleted=1))

    assert deleted_by_partition(lake) == {"x y": 3, "z": 1}


def test_the_parts_and_sidecars_of_checkpoints_are_read(lake: Lake) -> None:
    from deltaworks.tables.deletion_vectors import deleted_row_counts

    created(lake)
    table = present(lake.open(KEY))
    first, second = add("p=x%2520y/a.parquet", "x y", deleted=2), add("b", "z", deleted=5)
    for part, action in ((1, first), (2, second)):
        checkpoint(lake, 0, [action], f"{0:020d}.checkpoint.{part:010d}.{2:010d}.parquet", {"parts": 2})
    in_parts = deleted_row_counts(lake, KEY, table, checkpoint={"version": 0, "parts": 2})
    checkpoint(lake, 0, [first], "_sidecars/s1.parquet", {})
    sidecar = {"sidecar": {"path": "s1.parquet", "sizeInBytes": 1, "modificationTime": 1}}
    checkpoint(lake, 0, [second, sidecar], f"{0:020d}.checkpoint.u.parquet", {})
    # The hint need not list the sidecars.
    hint = {"version": 0, "v2Checkpoint": {"path": f"{0:020d}.checkpoint.u.parquet"}}
    in_sidecars = deleted_row_counts(lake, KEY, table, checkpoint=hint)

    assert in_parts == in_sidecars == {"p=x%2520y/a.parquet": 2, "b": 5}


def test_a_log_with_a_gap_returns_none(lake: Lake) -> None:
    from deltaworks.tables.deletion_vectors import deleted_row_counts

    created(lake)
    commit(lake, 1, add("c", "z", deleted=1))
    table = present(lake.open(KEY))
    (log(lake) / f"{0:020d}.json").unlink()

    assert deleted_row_counts(lake, KEY, table, checkpoint=None) is None


def test_the_number_of_marked_rows_is_unknown_while_the_named_checkpoint_is_missing(lake: Lake) -> None:
    from deltaworks.tables.deletion_vectors import deleted_row_counts

    created(lake)
    table = present(lake.open(KEY))

    assert deleted_row_counts(lake, KEY, table, checkpoint={"version": 0}) is None


RANGES = st.builds(
    lambda first, length, step: set(range(first, first + length * step, step)),
    st.one_of(st.integers(0, 300_000), st.integers(0, 1 << 36)),
    st.integers(1, 6_000),
    st.sampled_from([1, 1, 2, 97]),
)


@settings(max_examples=30, deadline=None)
@given(parts=st.lists(RANGES, max_size=6), runs=st.booleans())
@example(parts=[], runs=False)
@example(parts=[set(range(4096))], runs=False)
@example(parts=[set(range(4097))], runs=False)
@example(parts=[{0, 0xFFFF, 0x1_0000, 0xFFFF_FFFF, 0x1_0000_0000}], runs=True)
def test_deleted_positions_are_decoded(parts: list[set[int]], runs: bool) -> None:
    positions = set().union(*parts)
    assert decode_vector(encode_vector(positions, runs=runs)).tolist() == sorted(positions)


def added(vector: dict[str, Any]) -> dict[str, Any]:
    return {"path": "part-1.parquet", "deletionVector": vector}


@pytest.mark.parametrize("positions", [{0}, {3, 4, 5, 70_000}, set(range(0, 20_000, 2))])
def test_a_vector_within_the_log(lake: Lake, positions: set[int]) -> None:
    data = encode_vector(positions)
    vector = {
        "storageType": "i",
        "pathOrInlineDv": z85(data),
        "sizeInBytes": len(data),
        "cardinality": len(positions),
    }
    assert deleted_positions(lake, KEY, added(vector)).tolist() == sorted(positions)


def file_vectors(lake: Lake, folder: str, *of_files: set[int]) -> list[dict[str, Any]]:
    """Vectors in one file, as referenced by the add actions of several data files."""
    vectors = [encode_vector(positions, runs=True) for positions in of_files]
    data, offsets = in_file(*vectors)
    name = folder + z85(uuid.uuid4().bytes)
    path = Path(lake.storage.prefix, KEY, deletion_vector_path(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return [
        {
            "storageType": "u",
            "pathOrInlineDv": name,
            "offset": offset,
            "sizeInBytes": len(vector),
            "cardinality": len(positions),
        }
        for offset, vector, positions in zip(offsets, vectors, of_files, strict=True)
    ]


@pytest.mark.parametrize("folder", ["", "ab"])
def test_vectors_that_share_a_file(lake: Lake, folder: str) -> None:
    marked = [{1, 2}, set(range(100, 5_000)), {0, 1 << 33}]
    vectors = file_vectors(lake, folder, *marked)
    assert [set(deleted_positions(lake, KEY, added(vector)).tolist()) for vector in vectors] == marked


def test_a_file_without_a_vector_has_all_its_rows(lake: Lake) -> None:
    assert deleted_positions(lake, KEY, {"path": "part-1.parquet"}).tolist() == []


def test_a_damaged_vector_raises(lake: Lake) -> None:
    (vector,) = file_vectors(lake, "", {1, 2, 3})
    path = Path(lake.storage.prefix, KEY, deletion_vector_path(vector["pathOrInlineDv"]))
    whole = path.read_bytes()
    for at in range(len(whole)):
        if at:  # the first byte is the version of the file's form, which is the same for all
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(ContractError, match="DELETION_VECTOR_UNREADABLE"):
                deleted_positions(lake, KEY, added(vector))
        path.write_bytes(whole[:at])
        with pytest.raises(ContractError, match="DELETION_VECTOR_UNREADABLE"):
            deleted_positions(lake, KEY, added(vector))
    path.unlink()
    with pytest.raises(ContractError, match="DELETION_VECTOR_UNREADABLE"):
        deleted_positions(lake, KEY, added(vector))


@pytest.mark.parametrize("change", [{"storageType": "p"}, {"cardinality": 2}, {"pathOrInlineDv": "#####"}])
def test_a_vector_that_contradicts_its_log_is_rejected(lake: Lake, change: dict[str, Any]) -> None:
    data = encode_vector({1, 2, 3})
    vector = {"storageType": "i", "pathOrInlineDv": z85(data), "sizeInBytes": len(data), "cardinality": 3}
    with pytest.raises(ContractError, match="DELETION_VECTOR_UNREADABLE"):
        deleted_positions(lake, KEY, added(vector | change))


def test_z85_is_that_of_the_rfc() -> None:
    assert z85(bytes.fromhex("864fd26fb559f75b")) == "HelloWorld"
    assert decode_z85("HelloWorld") == bytes.fromhex("864fd26fb559f75b")
