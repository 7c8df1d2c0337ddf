"""Tables created with their first rows in one commit."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pytest

from deltaworks.tables.commit import Step
from deltaworks.tables.creation import NewTable, basic_schema, create_table
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import parse_schema_string, read_commits
from deltaworks.testing import present

KEY = "gold/daily"


def column(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": False, "metadata": {}, **more}


def struct(*columns: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(columns)}


DATE, USERS = column("event_date", "date"), column("users", "long")


def new_table(*users: int, step: int = 1) -> NewTable:
    schema = present(basic_schema(struct(DATE, USERS), ["event_date"]))
    rows = [{"event_date": dt.date(2026, 3, 1 + number % 2), "users": count} for number, count in enumerate(users)]
    return NewTable(
        schema=schema,
        partition_by=["event_date"],
        rows=pa.Table.from_pylist(rows, schema=parse_schema_string(json.dumps(schema))),
        configuration={"delta.checkpointInterval": "50"},
        step=Step("builds", step),
        user_metadata='{"made": "here"}',
    )


@pytest.mark.parametrize("users", [(), (1,), (1, 2, 3)])
def test_a_table_has_all_its_first_rows_at_version_0(lake: Lake, users: tuple[int, ...]) -> None:
    assert create_table(lake, KEY, new_table(*users)) == len(users)

    opened = present(lake.open(KEY))
    assert (opened.version(), opened.metadata().partition_columns) == (0, ["event_date"])
    assert opened.metadata().configuration == {"delta.checkpointInterval": "50"}
    assert opened.transaction_version("builds") == 1
    assert sorted(present(lake.rows(KEY)).column("users").to_pylist()) == sorted(users)
    assert len(opened.file_uris()) == len({number % 2 for number in range(len(users))})


def test_of_two_creators_the_first_creates_the_table(lake: Lake) -> None:
    assert create_table(lake, KEY, new_table(1, 2)) == 2
    assert create_table(lake, KEY, new_table(7, step=2)) is None

    assert sorted(present(lake.rows(KEY)).column("users").to_pylist()) == [1, 2]


def test_the_log_has_only_names_and_types_of_columns(lake: Lake) -> None:
    create_table(lake, KEY, new_table(1))
    ((_, actions),) = read_commits(lake, KEY, [0])
    (metadata,) = (action["metaData"] for action in actions or () if "metaData" in action)
    for written in json.loads(metadata["schemaString"])["fields"]:
        assert (written["nullable"], written["metadata"]) == (True, {})


def test_values_may_be_null_at_every_depth() -> None:
    pair = struct(column("key", "string"), column("n", "decimal(10,2)"))
    listed = {"type": "array", "elementType": pair, "containsNull": False}
    mapped = {"type": "map", "keyType": "string", "valueType": listed, "valueContainsNull": False}
    written = present(basic_schema(struct(DATE, column("nested", mapped)), ["event_date"]))["fields"][1]["type"]
    assert written["valueContainsNull"]
    assert written["valueType"]["containsNull"]
    assert all(inner["nullable"] for inner in written["valueType"]["elementType"]["fields"])


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ((DATE,), "no column is left that is no partition"),
        ((USERS,), "the partition is no column"),
        ((DATE, USERS, column("Users", "long")), "names differ in case alone"),
        ((DATE, column("all users", "long")), "a name that Delta refuses"),
        ((DATE, column("at", "timestamp_ntz")), "a type that is a feature"),
        ((DATE, column("nested", struct(column("at", "timestamp_ntz")))), "a type that is a feature, inside"),
        (
            (DATE, column("list", {"type": "array", "elementType": "variant", "containsNull": True})),
            "the same in a list",
        ),
        ((DATE, column("nothing", "void")), "a type without values"),
        ((DATE, column("users", {"type": "udt", "class": "a.B"})), "somebody's own type"),
        ((column("event_date", "double"), USERS), "partitions whose values are not written alike by everybody"),
        ((column("event_date", struct(USERS)), USERS), "partitions of structs"),
        ((DATE, column("name", "string", metadata={"__COLLATIONS": {"name": "icu.UNICODE"}})), "texts in an order"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_schema_that_needs_table_features_is_not_created(columns: tuple[dict[str, Any], ...], why: str) -> None:
    assert basic_schema(struct(*columns), ["event_date"]) is None, why
