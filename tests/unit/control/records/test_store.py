"""Records of a pipeline: created once, read alike by all processes, expired or rejected by name."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import ClassVar

import pytest

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects
from deltaworks.control.records.mutation import (
    APPLIED,
    SUPERSEDED,
    MutationBatch,
    MutationBatches,
    MutationCompletion,
    TableMutation,
    VersionRange,
)
from deltaworks.control.records.reprocess import (
    ReprocessCompletion,
    ReprocessPlan,
    ReprocessRecords,
    StagedFiles,
    StagedTable,
    new_reprocess_id,
    reprocess_id_for_run,
)
from deltaworks.control.records.store import Record, RecordKind, RecordStore, UnversionedRecord
from deltaworks.errors import ConfigError, ContractError
from deltaworks.testing import write_files
from tests.records import record_of

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


def test_a_claim_is_valid_until_it_expires_and_is_renewed_by_repeating_it(objects: LocalObjects) -> None:
    said = PipelineHome(objects, "shop").readers.pin("orders", reader="training", version=7, hours=2)
    later = utc_now() + dt.timedelta(hours=3)

    assert PipelineHome(objects, "shop").readers.read() == [said]
    assert said.is_active_at(utc_now())
    assert not said.is_active_at(later)

    PipelineHome(objects, "shop").readers.pin("orders", reader="training", version=8, hours=5)
    (renewed,) = PipelineHome(objects, "shop").readers.read()
    assert renewed.version == 8
    assert renewed.is_active_at(later)


def test_claims_are_separate_by_table_and_pipeline_and_withdrawn_by_name(objects: LocalObjects) -> None:
    for table, reader in (("orders", "a"), ("orders", "b"), ("items", "a")):
        PipelineHome(objects, "shop").readers.pin(table, reader=reader, version=1, hours=1)
    PipelineHome(objects, "games").readers.pin("orders", reader="a", version=1, hours=1)

    assert PipelineHome(objects, "shop").readers.unpin("orders", reader="a")
    assert not PipelineHome(objects, "shop").readers.unpin("orders", reader="a")
    assert {(each.table, each.reader) for each in PipelineHome(objects, "shop").readers.read()} == {
        ("orders", "b"),
        ("items", "a"),
    }
    assert len(PipelineHome(objects, "games").readers.read()) == 1


@pytest.mark.parametrize(("reader", "version", "hours"), [("No Name", 1, 1), ("a", -1, 1), ("a", 1, 0), ("a", 1, 721)])
def test_a_claim_with_invalid_values_is_rejected(
    objects: LocalObjects, reader: str, version: int, hours: float
) -> None:
    with pytest.raises(ConfigError, match="READER_INVALID"):
        PipelineHome(objects, "shop").readers.pin("orders", reader=reader, version=version, hours=hours)
    assert PipelineHome(objects, "shop").readers.read() == []


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"reader": "a"}'])
def test_an_unreadable_claim_is_an_error(objects: LocalObjects, data: bytes) -> None:
    objects.put(paths.reader_record("shop", "orders", "a"), data)

    with pytest.raises(ConfigError, match="READER_UNREADABLE"):
        PipelineHome(objects, "shop").readers.read()


def batch(number: int, *, up_to: int = 3, organisation: str | None = None) -> MutationBatch:
    return MutationBatch(
        pipeline="crm",
        number=number,
        generation=1,
        requests=VersionRange(table="requests", table_id="t", after=-1, up_to=up_to),
        tables=(VersionRange(table="activities", table_id="u", after=2, up_to=7),),
        run="manual",
        at="2026-01-01T00:00:00.000+00:00",
        spec_fingerprint="f",
        code_version="1",
        organisation=organisation,
    )


def end(number: int, *, day: int = 1, outcome: str = APPLIED) -> MutationCompletion:
    done = TableMutation(table="activities", rows=number, files_removed=1, files_added=1, version=9, pause_seconds=0.5)
    at = f"2026-01-{day:02d}T00:00:00.000+00:00"
    return MutationCompletion(pipeline="crm", number=number, generation=1, outcome=outcome, at=at, tables=(done,))


@pytest.fixture
def batches(tmp_path: Path) -> MutationBatches:
    return PipelineHome(LocalObjects(tmp_path), "crm").mutations


def test_the_first_to_create_a_batch_decides_its_ranges(batches: MutationBatches) -> None:
    assert batches.get_or_create(batch(1, up_to=3)) == batch(1, up_to=3)
    assert batches.get_or_create(batch(1, up_to=9)) == batch(1, up_to=3)
    assert batches.numbers() == (1, 0)
    batches.complete(end(1))
    batches.complete(end(1).replace(outcome=SUPERSEDED))
    assert batches.numbers() == (1, 1)
    assert batches.completion(1) == end(1)
    assert (end(1).rows, end(1).pause_seconds) == (1, 0.5)


def test_the_next_batch_begins_after_the_last_full_one(batches: MutationBatches) -> None:
    assert batches.last_full_batch() is None
    for number, organisation, outcome in ((1, None, APPLIED), (2, "acme", APPLIED), (3, None, SUPERSEDED)):
        batches.get_or_create(batch(number, organisation=organisation))
        batches.complete(end(number, outcome=outcome))
    assert batches.last_full_batch() == batch(1)


def test_batches_of_a_time_are_found_although_the_oldest_records_were_deleted(
    batches: MutationBatches, tmp_path: Path
) -> None:
    for number in range(1, 9):
        batches.complete(end(number, day=number))
    found = [batches.newest_ended_before(f"2026-01-{day:02d}T12:00:00.000+00:00") for day in (1, 5, 8, 20)]
    assert found == [1, 5, 8, 8]
    assert batches.newest_ended_before("2025-12-31T00:00:00.000+00:00") == 0
    for number in (1, 2):
        (tmp_path / paths.mutation_completion("crm", number)).unlink()
    assert batches.newest_ended_before("2026-01-05T12:00:00.000+00:00") == 5


def test_records_of_old_batches_are_removed_and_the_newest_stay(batches: MutationBatches) -> None:
    for number in range(1, 6):
        batches.get_or_create(batch(number))
        batches.complete(end(number, day=number))
    batches.get_or_create(batch(6))

    assert batches.delete_old_records(keep=2) == 6
    assert [batches.batch(number) is not None for number in range(1, 7)] == [False] * 3 + [True] * 3
    assert batches.numbers() == (6, 5)
    assert batches.delete_old_records(keep=2) == 0


@pytest.mark.parametrize("data", [b"{", b'{"format": 2}', b'{"format": 1}'])
def test_a_damaged_or_foreign_record_is_rejected(batches: MutationBatches, tmp_path: Path, data: bytes) -> None:
    for key in (paths.mutation_batch("crm", 1), paths.mutation_completion("crm", 1)):
        LocalObjects(tmp_path).put(key, data)
    for read in (batches.batch, batches.completion):
        with pytest.raises(ContractError, match="MUTATION_BATCH_UNREADABLE"):
            read(1)


PLAN = record_of(
    ReprocessPlan,
    pipeline="shop",
    id="r1",
    mode="in_place",
    tables=("orders",),
    selection={"from_start": True},
    through_batch=7,
    ranges=((1, 4), (6, 8)),
)
FILES = StagedFiles(
    tables=(StagedTable(table="orders", rows=3, files=("a.parquet",), ranges=((1, 4),)),),
    missing=("k",),
    unmatched_events=1,
    still_quarantined=2,
)


@pytest.fixture
def records(tmp_path: Path) -> ReprocessRecords:
    return ReprocessRecords(LocalObjects(tmp_path), "shop", "r1")


def test_there_is_nothing_before_it_is_created(records: ReprocessRecords) -> None:
    assert (records.plan(), records.files(), records.completion()) == (None, None, None)


def test_the_first_record_wins(records: ReprocessRecords) -> None:
    assert records.get_or_create_plan(PLAN) == PLAN
    assert records.get_or_create_plan(PLAN.replace(objects=1)) == PLAN
    assert records.get_or_create_files(FILES) == FILES
    assert records.get_or_create_files(FILES.replace(missing=())) == FILES
    records.record_completion([{"table": "orders"}])
    records.record_completion([{"table": "other"}])

    assert (records.plan(), records.files(), records.completion()) == (
        PLAN,
        FILES,
        ReprocessCompletion(tables=({"table": "orders"},)),
    )


@pytest.mark.parametrize("text", ["{", '{"format": 2}', '{"format": 1, "colour": 1}', "[]"])
def test_a_record_of_another_kind_is_rejected(records: ReprocessRecords, tmp_path: Path, text: str) -> None:
    write_files(tmp_path, {paths.reprocess("shop", "r1.json"): text})

    with pytest.raises(ContractError, match="REPROCESS_RECORD_UNREADABLE"):
        records.plan()


@pytest.mark.parametrize("name", ["", "A", "a/b", "a" * 41, "../x", "lease.json"])
def test_an_id_is_a_plain_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="REPROCESS_ID_INVALID"):
        ReprocessRecords(LocalObjects(tmp_path), "shop", name)


def test_every_try_of_an_airflow_run_has_the_same_id(tmp_path: Path) -> None:
    first = reprocess_id_for_run("manual__2026-01-01T00:00:00+00:00")

    assert first == reprocess_id_for_run("manual__2026-01-01T00:00:00+00:00")
    assert first != reprocess_id_for_run("manual__2026-01-01T00:00:01+00:00")
    for name in (first, new_reprocess_id()):
        assert ReprocessRecords(LocalObjects(tmp_path), "shop", name).id == name
