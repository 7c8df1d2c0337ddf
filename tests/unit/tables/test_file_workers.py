"""Numbers of rows that the log does not have are read from the files, or unknown; they are never zero."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from deltaworks.control.objects import open_objects
from deltaworks.errors import ContractError
from deltaworks.tables.file_workers import count_rows, table_rows, with_row_counts
from deltaworks.tables.files_commit import StateDifference, TargetState
from deltaworks.tables.log import row_count, state_at
from deltaworks.tables.table_swap import table_content
from tests.unit.tables.log_model import KEY, LogModel


@pytest.fixture
def model(tmp_path: Path) -> LogModel:
    model = LogModel(tmp_path)
    model.add(3)
    model.add(4, stats="none")
    return model


def opened(model: LogModel) -> DeltaTable:
    table = model.lake.open(KEY)
    assert table is not None
    return table


def test_rows_that_statistics_lack_are_counted_in_the_files(model: LogModel) -> None:
    files = list(state_at(model.lake, open_objects(model.lake.storage), KEY).files.values())

    assert count_rows(model.lake, KEY, files) == table_rows(model.lake, KEY, opened(model)) == 7
    assert sorted(map(row_count, with_row_counts(model.lake, KEY, files))) == [3, 4]  # type: ignore[type-var]
    assert count_rows(model.lake, KEY, []) == 0


def test_rows_that_a_deletion_vector_marks_are_not_counted(model: LogModel) -> None:
    (added,) = (added for added in model.actions.values() if "stats" not in added)
    vector = {"storageType": "u", "pathOrInlineDv": "x" * 20, "sizeInBytes": 1, "cardinality": 3}

    assert count_rows(model.lake, KEY, [{**added, "deletionVector": vector}]) == 1


@pytest.mark.parametrize("damage", ["missing", "no Parquet", "elsewhere"])
def test_rows_that_cannot_be_counted_are_rejected_with_the_file(model: LogModel, damage: str) -> None:
    (name,) = (name for name, added in model.actions.items() if "stats" not in added)
    added = model.actions[name]
    if damage == "missing":
        (model.folder / name).unlink()
    elif damage == "no Parquet":
        (model.folder / name).write_bytes(b"x")
    else:
        added = {**added, "path": f"s3://other/{name}"}

    with pytest.raises(ContractError, match=f"ROWS_UNKNOWN.*{name}"):
        count_rows(model.lake, KEY, [added])
    if damage != "elsewhere":
        with pytest.raises(ContractError, match=f"ROWS_UNKNOWN.*{name}"):
            table_rows(model.lake, KEY, opened(model))


def test_the_content_of_a_table_and_a_difference_say_that_rows_are_unknown(model: LogModel) -> None:
    state = state_at(model.lake, open_objects(model.lake.storage), KEY)
    content = table_content(opened(model))
    difference = StateDifference.between(state, TargetState({}))

    assert (content.rows, content.files) == (None, 2)
    assert content.bytes == state.bytes
    assert (difference.files_removed, difference.rows_removed, difference.rows_added) == (2, None, 0)


def test_statistics_beside_the_count_are_retained(model: LogModel) -> None:
    (added,) = (added for added in model.actions.values() if "stats" not in added)
    bounds = {"minValues": {"n": 0}, "maxValues": {"n": 3}}

    (counted,) = with_row_counts(model.lake, KEY, [{**added, "stats": json.dumps(bounds)}])

    assert json.loads(counted["stats"]) == {**bounds, "numRecords": 4}
