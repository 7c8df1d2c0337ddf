"""Descriptions of tables and columns in Delta."""

from __future__ import annotations

import json
import threading
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from deltaworks.specs.descriptions import TableDescription
from deltaworks.tables.commit import Step, refresh
from deltaworks.tables.descriptions import describe_table, ensure_described
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import state_at
from deltaworks.testing import present

KEY = "tables/shop/orders"
SCHEMA = pa.schema([("id", pa.string()), ("amount", pa.int64()), ("note", pa.string())])
FIRST = TableDescription(text="Orders", columns={"id": "Id of the order", "amount": "Price in cents"})
SECOND = TableDescription(text="All orders", columns={"id": "Id of the order", "amount": "Price in euro cents"})


def create(lake: Lake, description: TableDescription = FIRST, **settings: Any) -> DeltaTable:
    return ensure_described(lake, KEY, SCHEMA, description, user_metadata="{}", **settings)


def append(lake: Lake, table: DeltaTable, number: int) -> None:
    rows = pa.table({"id": [str(number)], "amount": [number], "note": [None]}, schema=SCHEMA)
    lake.append(table, KEY, rows, step=Step("rows", number), user_metadata="{}")


def texts(table: DeltaTable) -> tuple[str | None, dict[str, str | None]]:
    return table.metadata().description, {field.name: field.metadata.get("comment") for field in table.schema().fields}


def test_a_table_has_its_descriptions_from_its_first_commit(lake: Lake) -> None:
    table = create(lake)

    assert table.version() == 0
    assert texts(table) == ("Orders", {"id": "Id of the order", "amount": "Price in cents", "note": None})


def test_a_changed_description_is_one_commit_without_files(lake: Lake) -> None:
    append(
        lake,
        create(lake, partition_by=["note"], properties={"delta.deletedFileRetentionDuration": "interval 9 days"}),
        1,
    )
    before = state_at(lake, lake.objects, KEY)

    table = create(lake, SECOND)

    after = state_at(lake, lake.objects, KEY)
    assert (table.version(), after.version) == (2, 2)
    assert texts(table) == ("All orders", {"id": "Id of the order", "amount": "Price in euro cents", "note": None})
    assert after.files == before.files
    assert after.protocol == before.protocol
    unchanged = ("id", "partitionColumns", "configuration", "createdTime", "format")
    assert [after.metadata[name] for name in unchanged] == [before.metadata[name] for name in unchanged]
    types = [
        [(field["name"], field["type"]) for field in json.loads(one.metadata["schemaString"])["fields"]]
        for one in (before, after)
    ]
    assert types[0] == types[1]


def test_equal_descriptions_commit_nothing(lake: Lake) -> None:
    create(lake)
    assert [create(lake, SECOND).version() for _ in range(3)] == [1, 1, 1]


def test_a_text_that_people_set_on_an_undescribed_column_stays(lake: Lake) -> None:
    create(lake).alter.set_column_metadata("note", {"comment": "by hand"})

    assert texts(create(lake, SECOND))[1]["note"] == "by hand"


def test_a_table_without_declared_texts_keeps_those_that_it_has(lake: Lake) -> None:
    create(lake)
    assert texts(create(lake, TableDescription(text="")))[0] == "Orders"


def test_a_schema_that_cannot_be_copied_is_left_alone(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    table = create(lake)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["inCommitTimestamp"]}
    lake.objects.put_if_absent(f"{KEY}/_delta_log/{1:020d}.json", json.dumps({"protocol": protocol}).encode())
    refresh(table)

    assert not describe_table(lake, KEY, table, SECOND, user_metadata="{}")
    assert "inCommitTimestamp" in caplog.text


def test_writers_that_append_meanwhile_lose_nothing(lake: Lake) -> None:
    create(lake)
    written: list[int] = []

    def write() -> None:
        own = Lake(lake.storage)
        table = present(own.open(KEY))
        for number in range(1, 21):
            append(own, table, number)
            written.append(number)

    writer = threading.Thread(target=write)
    writer.start()
    for number in range(20):
        text = TableDescription(text=f"Orders {number}", columns={"id": f"Id {number}"})
        assert texts(create(Lake(lake.storage), text))[0] == f"Orders {number}"
    writer.join()

    table = present(lake.open(KEY))
    assert written == list(range(1, 21))
    assert sorted(present(lake.rows(KEY)).column("amount").to_pylist()) == written
    assert texts(table)[0] == "Orders 19"
    assert table.version() == 40


def test_a_failing_storage_stops_nobody(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create(lake)
    monkeypatch.setattr("deltaworks.tables.descriptions.write_commit", _refuse)

    assert texts(create(lake, SECOND))[0] == "Orders"
    assert "storage is read-only" in caplog.text


def _refuse(*_: Any) -> bool:
    raise OSError("the storage is read-only")
