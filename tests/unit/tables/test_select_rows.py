"""Selecting rows from many small files by the statistics in the log, without opening other files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from deltaworks.control.provenance import user_metadata
from deltaworks.tables import lake as module
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step, commit_step
from deltaworks.tables.files import write_file
from deltaworks.tables.lake import Lake, select_rows
from deltaworks.testing import local_lake
from tests.examples import examples

SCHEMA = arrow_schema({"outcome": "string", "batch_id": "long", "row": "long"})
MADE = user_metadata(pipeline="p", batch=1, operation="append")
OUTCOMES = ["committed", "already_committed", "held", "caught_up", None]
FILES = st.lists(
    st.lists(st.tuples(st.sampled_from(OUTCOMES), st.none() | st.integers(0, 5)), min_size=1, max_size=4), max_size=6
)


def table_of(root: Path, files: list[list[dict[str, Any]]]) -> tuple[Lake, Any]:
    lake = local_lake(root)
    table = lake.ensure("t", SCHEMA, user_metadata=MADE)
    written = [
        write_file(fs.LocalFileSystem(), f"{root}/t", pa.Table.from_pylist(rows, schema=SCHEMA), partition={})
        for rows in files
    ]
    commit_step(table, [file.add_action() for file in written], step=Step("s", 1), user_metadata=MADE)
    return lake, table


@settings(max_examples=examples(60), deadline=None)
@given(FILES, st.sets(st.sampled_from(OUTCOMES[:4]), min_size=1), st.sets(st.integers(0, 5), min_size=1))
def test_selected_rows_equal_those_of_a_full_scan(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[tuple[Any, Any]]], outcomes: set[str], batches: set[int]
) -> None:
    rows = [[{"outcome": each[0], "batch_id": each[1], "row": number} for number, each in enumerate(f)] for f in files]
    lake, table = table_of(tmp_path_factory.mktemp("lake"), rows)
    wanted = {"outcome": sorted(outcomes), "batch_id": sorted(batches)}

    found = select_rows(lake, "t", table, columns=["row", "batch_id"], values=wanted)

    expected = [
        {"row": row["row"], "batch_id": row["batch_id"]}
        for each in rows
        for row in each
        if row["outcome"] in outcomes and row["batch_id"] in batches
    ]
    key = str
    assert sorted(found, key=key) == sorted(expected, key=key)


def test_files_without_the_values_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = [[{"outcome": "committed", "batch_id": number, "row": 0}] for number in range(20)]
    held = [[{"outcome": "held", "batch_id": 20, "row": 0}]]
    lake, table = table_of(tmp_path, committed + held)
    opened = []
    read = module.read_parquet
    monkeypatch.setattr(module, "read_parquet", lambda source, **options: opened.append(1) or read(source, **options))

    found = select_rows(
        lake, "t", table, columns=["batch_id"], values={"outcome": ["held", "caught_up"], "batch_id": [20, 21]}
    )

    assert found == [{"batch_id": 20}]
    assert len(opened) == 1
