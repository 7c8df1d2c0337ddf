"""Records: unreadable ones are rejected by name, and all processes get the one created first."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from deltaworks.control.objects import LocalObjects
from deltaworks.control.records.store import Record, RecordKind, RecordStore, UnversionedRecord
from deltaworks.errors import ConfigError, ContractError

KEY = "folder/note.json"


class Note(Record):
    kind: ClassVar[RecordKind] = RecordKind(noun="note", unreadable_condition="TEST_UNREADABLE", hint="Write it again.")

    format: int = 3
    name: str


class Line(UnversionedRecord):
    kind: ClassVar[RecordKind] = RecordKind(
        noun="line",
        unreadable_condition="TEST_UNREADABLE",
        hint="",
        error=ConfigError,
        vanished_condition="TEST_VANISHED",
    )
    indent: ClassVar[int | None] = 1

    seconds: float


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path)


def test_a_record_of_the_format_is_read() -> None:
    assert Note.decode(b'{"name": "a", "format": 3}', key=KEY) == Note(name="a")
    assert Note(name="a").encode() == b'{"format":3,"name":"a"}'


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"name": "a", "format": 2}', "format 2 is not 3"),
        (b'{"name": "a", "format": 4, "of_tomorrow": 1}', "format 4 is not 3"),
        (b'{"name": "a"}', "it has no format"),
        (b'{"format": 3}', "name: Field required"),
        (b'{"format": 3, "name": "a", "other": 1}', "other: Extra inputs are not permitted"),
        (b'{"name": "a", "form', "Invalid JSON"),
        (b"[1]", "Input should be an object"),
        (b"", "Invalid JSON"),
    ],
)
def test_an_unreadable_record_is_rejected_with_key_and_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ContractError, match="TEST_UNREADABLE") as refused:
        Note.decode(data, key=KEY)

    assert refused.value.message.startswith("folder/note.json is not a valid note: ")
    assert reason in refused.value.message
    assert refused.value.hint == "Write it again."


def test_a_record_without_a_format_raises_the_error_of_its_kind() -> None:
    with pytest.raises(ConfigError, match="TEST_UNREADABLE"):
        Line.decode(b"{}", key=KEY)


@pytest.mark.parametrize("seconds", [0.1, float("inf"), 1e300])
def test_numbers_survive_json(seconds: float) -> None:
    assert Line.decode(Line(seconds=seconds).encode(), key=KEY) == Line(seconds=seconds)


def test_a_changed_copy_has_the_fields_of_its_class_and_no_other() -> None:
    assert Note(name="a").replace(name="b") == Note(name="b")
    with pytest.raises(ValueError, match="nam"):
        Note(name="a").replace(nam="b")


def test_the_first_writer_wins(objects: LocalObjects) -> None:
    store = RecordStore(objects, Note)

    assert store.read(KEY) is None
    assert store.get_or_create(KEY, Note(name="first")) == Note(name="first")
    assert store.get_or_create(KEY, Note(name="second")) == Note(name="first")
    assert store.get_or_create(KEY, Note(name="first")) == Note(name="first")
    assert store.create(KEY, Note(name="first"))
    assert not store.create(KEY, Note(name="second"))
    assert store.read(KEY) == Note(name="first")


@pytest.mark.parametrize(
    ("record", "condition"), [(Note(name="a"), "RECORD_VANISHED"), (Line(seconds=1.0), "TEST_VANISHED")]
)
def test_a_record_deleted_between_creation_and_read_is_an_error(
    tmp_path: Path, record: Note | Line, condition: str
) -> None:
    class Vanishing(LocalObjects):
        def put_if_absent(self, key: str, data: bytes) -> bool:
            return False

    with pytest.raises(ContractError, match=rf"{condition}\] {KEY} was deleted meanwhile"):
        RecordStore(Vanishing(tmp_path), type(record)).get_or_create(KEY, record)


def test_an_existing_unreadable_record_is_rejected(objects: LocalObjects) -> None:
    objects.put(KEY, b"{")

    with pytest.raises(ContractError, match="TEST_UNREADABLE"):
        RecordStore(objects, Note).get_or_create(KEY, Note(name="a"))
