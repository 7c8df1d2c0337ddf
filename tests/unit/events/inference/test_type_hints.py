"""Type hints: syntax, and their effect on inferred columns."""

from __future__ import annotations

import pytest

from deltaworks.events.inference.type_hints import apply_hints, parse_hints
from deltaworks.specs.types import parse_type

FOUND = {
    "id": parse_type("string"),
    "user": parse_type("struct<name:string,age:long>"),
    "items": parse_type("array<struct<sku:long>>"),
}


def hinted(text: str) -> dict[str, str]:
    return {name: str(kind) for name, kind in apply_hints(FOUND, parse_hints(text)).items()}


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("", {}),
        (" id  BIGINT ,", {"id": "long"}),
        ("ID bigint", {"id": "long"}),
        ("price DECIMAL(12,2), tags ARRAY<STRING>", {"price": "decimal(12,2)", "tags": "array<string>"}),
        ("user.age int", {"user": "struct<name:string,age:int>"}),
        ("user.level: double", {"user": "struct<name:string,age:long,level:double>"}),
        ("items.sku STRING", {"items": "array<struct<sku:string>>"}),
        ("user.name STRING, user STRUCT<x: INT>", {"user": "struct<x:int,name:string>"}),
        ("at.day DATE", {"at": "struct<day:date>"}),
        ("`first, name` STRING, `a.b` MAP<STRING,INT>", {"first, name": "string", "a.b": "map<string,int>"}),
        ("_key STRING", {"_key": "string"}),
    ],
)
def test_a_hint_changes_or_adds_a_column_and_nothing_else(text: str, changed: dict[str, str]) -> None:
    assert hinted(text) == {name: str(kind) for name, kind in FOUND.items()} | changed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id", "'id' is not a type hint"),
        ("id BIGINTT", "unknown type 'bigintt'"),
        ("id BIGINT, ID STRING", "two hints"),
        ("user.`first name` STRING", "'first name' cannot be the name of a field inside a column"),
        ("_rescued_data STRING", "a reserved column"),
        ("a b c", "unknown type"),
        ("a. INT", "not a type hint"),
    ],
)
def test_an_invalid_hint_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_hints(text)
