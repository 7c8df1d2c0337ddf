"""The examples of docs/how-to/read-tables.md, run on a table, and on one whose rows are marked as deleted."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaProtocolError

from deltaworks.tables.variant import delta_schema, encode_json, variant_array

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to/read-tables.md").read_text()
EXAMPLES = re.findall(r"(<!-- marks -->\n)?```python\n(.*?)```", PAGE, re.DOTALL)
#: Python's alphabet of base 85 as that of ZeroMQ, in which Delta writes its vectors.
_TO_Z85 = str.maketrans(
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
)


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Three rows, of which version 1 has two."""
    for amount in (1, 2, 3):
        write_deltalake(tmp_path / "orders", rows_of(amount), mode="append")
    return str(tmp_path / "orders")


def rows_of(*amounts: int) -> pa.Table:
    return pa.table({"amount": amounts, "shop": [f"shop {amount}" for amount in amounts]})


@pytest.fixture(params=["merge", "update", "delete", "compact"])
def rewritten(table: str, request: pytest.FixtureRequest) -> str:
    """The same three rows in files that delta-rs wrote in another way than by appending."""
    delta = DeltaTable(table)
    if request.param == "merge":
        merge = delta.merge(rows_of(2, 3), "t.amount = s.amount", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
    elif request.param == "update":
        delta.update(updates={"shop": "shop || '!'"}, predicate="amount > 1")
    elif request.param == "delete":
        write_deltalake(table, rows_of(3, 4), mode="append")
        DeltaTable(table).delete("amount = 4")
        DeltaTable(table).delete("amount = 1")
    else:
        delta.optimize.compact()
    return table


@pytest.fixture
def marked(table: str) -> str:
    """The same in one file, of which version 5 marks the second row as deleted."""
    DeltaTable(table).optimize.compact()
    log = Path(table, "_delta_log")
    actions = [json.loads(line) for line in (log / f"{3:020d}.json").read_text().splitlines()]
    (file,) = (action["add"] for action in actions if "add" in action)
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    commit = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"remove": {"path": file["path"], "deletionTimestamp": 1_700_000_000_000, "dataChange": True}},
        {"add": {**file, "dataChange": True, "deletionVector": vector_of(1)}},
    ]
    (log / f"{4:020d}.json").write_text("\n".join(map(json.dumps, commit)))
    return table


def vector_of(row: int) -> dict[str, Any]:
    """The vector, written into the log itself, that marks one row: the format's magic number, and one bitmap."""
    bitmap = struct.pack("<IIHHIH", 12_346, 1, 0, 0, 16, row)
    data = struct.pack("<iqi", 1_681_511_377, 1, 0) + bitmap
    text = base64.b85encode(data + b"\0" * (-len(data) % 4)).decode().translate(_TO_Z85)
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": 1}


def run(example: str, table: str) -> dict[str, Any]:
    names: dict[str, Any] = {"TABLE": table, "OPTIONS": {}}
    exec(example, names)
    return names


def rows_in(names: dict[str, Any], name: str) -> int:
    """How many rows an example has read, or counted."""
    value = names[name]
    if isinstance(value, pd.DataFrame | pl.DataFrame):
        return len(value)
    if isinstance(value, DeltaTable):
        return int(value.to_pyarrow_table().num_rows)
    counted = pa.table(value).column("n").to_pylist() if not isinstance(value, list) else [value[0][0]]
    return int(counted[0])


def test_there_are_examples_of_all_readers_that_can_be_had() -> None:
    told = " ".join(example for _, example in EXAMPLES)
    assert all(word in told for word in ("QueryBuilder", "duckdb.sql", "read_pandas", "pl.scan_delta"))
    assert all("> 'a'" in example or '> "a"' in example for _, example in EXAMPLES)


@pytest.mark.parametrize("example", [example for _, example in EXAMPLES])
def test_an_example_reads_all_rows_and_those_of_another_version(example: str, table: str) -> None:
    names = run(example, table)

    assert rows_in(names, "answer" if "answer" in names else "frame") == 3
    if "before" in names:
        assert rows_in(names, "before") == 2


@pytest.mark.parametrize("example", [example for marks, example in EXAMPLES if marks or "QueryBuilder" in example])
def test_an_example_for_marks_leaves_marked_rows_out(example: str, marked: str) -> None:
    names = run(example, marked)

    assert rows_in(names, "answer" if "answer" in names else "frame") == 2


#: A condition in SQL, the same in Polars, and in Python.
CONDITIONS: list[tuple[str, str, Callable[[str], bool]]] = [
    ("= 'shop 3'", '== "shop 3"', lambda text: text == "shop 3"),
    ("= 'not there'", '== "not there"', lambda text: text == "not there"),
    ("> 'shop 2!'", '> "shop 2!"', lambda text: text > "shop 2!"),
    ("LIKE 'shop%'", '.str.starts_with("shop")', lambda text: text.startswith("shop")),
]


@pytest.mark.parametrize("example", [example for _, example in EXAMPLES])
@pytest.mark.parametrize(("sql", "polars", "holds"), CONDITIONS)
def test_an_example_filters_texts_in_files_of_every_operation(
    example: str, sql: str, polars: str, holds: Callable[[str], bool], rewritten: str
) -> None:
    shops = pa.RecordBatchReader.from_stream(DeltaTable(rewritten).scan(columns=["shop"])).read_all()
    changed = example.split("\nbefore", maxsplit=1)[0].replace("> 'a'", sql).replace('> "a"', polars)

    names = run(changed, rewritten)

    assert rows_in(names, "answer" if "answer" in names else "frame") == sum(map(holds, shops["shop"].to_pylist()))


def test_deltalakes_own_dataset_and_polars_over_it_refuse_a_table_with_marks(marked: str) -> None:
    with pytest.raises(DeltaProtocolError, match="deletionVectors"):
        DeltaTable(marked).to_pyarrow_dataset()
    with pytest.raises(DeltaProtocolError, match="deletionVectors"):
        pl.read_delta(marked, use_pyarrow=True)


def test_the_example_for_undeclared_fields_reads_them(tmp_path: Path) -> None:
    (example,) = (example for _, example in EXAMPLES if '"_rest"' in example)
    rows = pa.table({"shop": ["b", "c"], "_rest": variant_array([encode_json('{"color": "red"}'), None])})
    table = DeltaTable.create(tmp_path / "orders", delta_schema(rows.schema))
    write_deltalake(table, rows, mode="append")

    names = run(example.replace("count(*) AS n", "_rest.color"), table.table_uri)

    assert sorted(map(str, names["answer"])) == ["('red',)", "(None,)"]


@pytest.mark.parametrize("package", ["deltalake", "duckdb", "pandas", "polars", "pyspark", "delta-spark"])
def test_the_versions_on_the_page_are_those_that_are_tried(package: str) -> None:
    assert version(package) in PAGE
