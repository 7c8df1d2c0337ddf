"""Decoded deletion vectors equal the positions given to a literal encoder."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltaworks.errors import ContractError
from deltaworks.tables.deletion_vector_format import decode_vector, deleted_positions
from deltaworks.tables.lake import Lake
from deltaworks.tables.protected_files import decode_z85, deletion_vector_path
from tests.unit.tables.deletion_vector_encoder import encode_vector, in_file, z85

KEY = "tables/shop/orders"
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
