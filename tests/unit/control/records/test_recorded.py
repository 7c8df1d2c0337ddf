"""Records on disk: recorded objects are read as expected and written with the same fields."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaworks.control.home import ReaderRecord
from deltaworks.control.records.approval import Approval
from deltaworks.control.records.generations import (
    CheckpointRecord,
    Generations,
    LostCommit,
    Rollback,
    RollbackCompletion,
    StagedRows,
    StartOver,
    StartOverCompletion,
    TableLoss,
)
from deltaworks.control.records.held_tables import HeldTable, ResumeRequest
from deltaworks.control.records.model import FoldReport, Gain, ModelMetrics, ModelRun, PublishedModel
from deltaworks.control.records.mutation import MutationBatch, MutationCompletion, TableMutation, VersionRange
from deltaworks.control.records.prepared import PreparedBatch, PreparedReplay, PreparedTable
from deltaworks.control.records.reprocess import ReprocessCompletion, ReprocessPlan, StagedFiles, StagedTable
from deltaworks.control.records.specs import AcceptedChange, CurrentSpec, SpecRecord
from deltaworks.control.records.store import RecordPart, UnversionedRecord
from deltaworks.errors import ConfigError, ContractError
from tests.examples import examples
from tests.offenders import failures
from tests.unit.control.records.recorded_erasure import ERASURE
from tests.unit.control.records.recorded_outbound import OUTWARD
from tests.unit.control.records.recorded_summaries import SUMMARIES
from tests.unit.control.records.recorded_vault import VAULT

#: One object of every kind, as the last release without record models wrote them; later kinds as their first one did.
RECORDED = Path(__file__).parent / "recorded"
AT = "2026-01-02T03:04:05.678+00:00"
FILE = {
    "path": "event_date=2026-01-02/part-1.parquet",
    "size": 1234,
    "rows": 2,
    "partition": {"event_date": "2026-01-02", "org": None},
    "stats": '{"numRecords":2,"minValues":{"name":"é"}}',
}
TABLES = (
    PreparedTable(
        table="orders",
        writer="fan_out",
        rows=2,
        files=(FILE,),
        new_columns=({"name": "größe", "type": "double", "path": ["a", "größe"]},),
    ),
    PreparedTable(table="quarantine", writer="quarantine", rows=0, files=()),
)
CODE: dict[str, Any] = {"spec_fingerprint": "0f" * 8, "code_version": "0.9.0"}
BY: dict[str, Any] = {"by": "ada", "run": "manual", "at": AT}

EXPECTED: dict[str, UnversionedRecord] = (
    OUTWARD
    | SUMMARIES
    | VAULT
    | ERASURE
    | {
        "model_run": ModelRun(
            pipeline="shop",
            name="slow",
            number=3,
            outcome="published",
            reason="gains 0.125 over the better baseline",
            until=AT,
            versions={"hours": 12, "turnover": 7},
            declared={"name": "slow", "feature_groups": {"level": ["orders", "größe"]}},
            label_sql="SELECT shop, hour, true AS holds FROM hours",
            folds=(
                FoldReport(
                    train_from=AT,
                    train_to=AT,
                    test_from=AT,
                    test_to=AT,
                    train_rows=100,
                    train_positive=9,
                    test_rows=25,
                    test_positive=2,
                    algorithm="logistic",
                    scores={
                        "model": ModelMetrics(
                            pr_auc=0.5,
                            brier_score=0.0625,
                            threshold=0.25,
                            alarms=4,
                            alarm_precision=0.75,
                            lead_seconds=540.0,
                            calibration=((13, 0.125, 0.0), (12, 0.5, 0.25)),
                        ),
                        "seasonal": ModelMetrics(pr_auc=0.375, brier_score=None),
                    },
                    gain=Gain(baseline="seasonal", value=0.125, low=0.0625, high=0.25),
                    group_gains={"trend": Gain(baseline="level", value=0.0, low=-0.5, high=0.5)},
                ),
            ),
            model=PublishedModel(
                algorithm="logistic",
                columns=("orders",),
                inputs=("coalesce(CAST(orders AS DOUBLE), 1e0)",),
                expression="1e0 / (1e0 + exp(-(2e0 * x0)))",
                threshold=0.25,
            ),
            code="0e" * 8,
            code_version="0.9.0",
            run="manual",
            at=AT,
        ),
        "prepared_batch": PreparedBatch(
            pipeline="shop",
            generation=2,
            batch_id=42,
            spark_batch_id=3,
            checkpoint=2,
            owner="host/17",
            owner_epoch=5,
            run="shop__stream/manual__1/run/1",
            prepared_at=AT,
            ingested_at_us=1767323045678901,
            offsets={"start": None, "end": {"seq": 12, "shards": {"s-1": "49"}}},
            source={"files": 3, "bytes": 4567, "lag_seconds": 1.5},
            tables=TABLES,
            **CODE,
        ),
        "prepared_replay": PreparedReplay(
            pipeline="shop", ordinal=7, replay_id="b1" * 16, run="manual", prepared_at=AT, tables=TABLES, **CODE
        ),
        "mutation_batch": MutationBatch(
            pipeline="shop",
            number=4,
            generation=2,
            requests=VersionRange(table="requests", table_id="a-b", after=-1, up_to=9),
            tables=(VersionRange(table="orders", table_id="c-d", after=3, up_to=12),),
            run="manual",
            at=AT,
            organisation="acme",
            everything=True,
            **CODE,
        ),
        "mutation_end": MutationCompletion(
            pipeline="shop",
            number=4,
            generation=2,
            outcome="applied",
            at=AT,
            engine="process",
            requests={"update": 3, "delete": 1},
            invalid_requests=1,
            invalid_values=2,
            tables=(
                TableMutation(
                    table="orders",
                    rows=5,
                    files_removed=2,
                    files_added=1,
                    version=13,
                    attempts=2,
                    pause_seconds=0.25,
                    optimized=True,
                    engine="delta_rs",
                ),
            ),
            seconds={"merge": 1.5, "resolve": 2.0},
        ),
        "rollback": Rollback(
            pipeline="shop",
            ordinal=1,
            table="orders",
            generation=2,
            from_version=12,
            to_version=8,
            row_source="source",
            lost=(
                LostCommit(kind="batch", generation=2, number=41, rows=5, files=1),
                LostCommit(kind="replay", generation=1, number=7, rows=2, files=1),
            ),
            undone_changes=("MERGE of version 9",),
            dropped_files=("event_date=2026-01-01/part-0.parquet",),
            reason="wrong rows",
            code_version="0.9.0",
            **BY,
        ),
        "rollback_files": StagedRows(rows=5, files=(FILE,), missing=("in/a.json",)),
        "rollback_end": RollbackCompletion(version=13),
        "start_over": StartOver(
            pipeline="shop",
            generation=3,
            first_batch=43,
            start={"seq": 12},
            tables=(
                TableLoss(table="orders", version=12, rows=100, files=4, bytes=99999),
                TableLoss(table="items", version=3, rows=1, files=1, bytes=9, restore_to=2),
            ),
            reason="new names",
            to_batch=40,
            **BY,
            **CODE,
        ),
        "start_over_end": StartOverCompletion(versions={"orders": 13, "items": 4}),
        "reprocess_plan": ReprocessPlan(
            pipeline="shop",
            id="r1",
            mode="in_place",
            tables=("orders",),
            all_tables=False,
            selection={"batches": [1, 4], "files": [], "events": None, "from_start": False},
            through_batch=41,
            ranges=((1, 4), (6, 8)),
            objects=7,
            source_bytes=70,
            allow_missing=True,
            generation=2,
            **BY,
            **CODE,
        ),
        "reprocess_files": StagedFiles(
            tables=(StagedTable(table="orders", rows=3, files=("a.parquet",), ranges=((1, 4),)),),
            missing=("in/k.json",),
            unmatched_events=1,
            still_quarantined=2,
        ),
        "reprocess_end": ReprocessCompletion(
            tables=({"table": "orders", "target": "orders", "seconds": 1.25, "rows": 3, "version": 14},)
        ),
        "generations": Generations(
            generation=3,
            checkpoints=(
                CheckpointRecord(ordinal=1, first_batch=43, start={"seq": 12}, retired=True),
                CheckpointRecord(ordinal=2, first_batch=51, start={"seq": 19}),
            ),
        ),
        "held_table": HeldTable(
            table="orders",
            reason="suspended",
            since_batch=41,
            at=AT,
            condition="COMMIT_FAILED",
            message="no",
            hint="wait",
            by="manual",
            retryable=True,
        ),
        "approval": Approval(
            operation="vacuum",
            subject="shop",
            run="manual",
            requested_by="ada",
            requested_at=AT,
            run_started_at=AT,
            try_number=1,
            answer_by=AT,
            question_text="12 files",
            options={"retain_hours": 24},
            bounds={"max_files": 12},
            approved_by="grace",
            approver_id="2",
            approved_at=AT,
            used_at=AT,
        ),
    }
)
#: Records that say when they were written: their class alone is held against them.
CLASSES: dict[str, type[UnversionedRecord]] = {
    **{name: type(record) for name, record in EXPECTED.items()},
    "resume_request": ResumeRequest,
    "reader": ReaderRecord,
    "spec": SpecRecord,
    "current_spec": CurrentSpec,
    "accepted_change": AcceptedChange,
}


def test_there_is_a_recorded_object_of_every_kind() -> None:
    def leaves(kind: type[RecordPart]) -> set[type[RecordPart]]:
        below = kind.__subclasses__()
        return {kind} if not below else set().union(*map(leaves, below))

    product = {kind for kind in leaves(UnversionedRecord) if kind.__module__.startswith("deltaworks.")}

    assert product <= set(CLASSES.values())
    assert {path.stem for path in RECORDED.glob("*.json")} == set(CLASSES)


NAMES = {name: name for name in sorted(CLASSES)}


def check_read(name: str) -> None:
    assert CLASSES[name].decode((RECORDED / f"{name}.json").read_bytes(), key="k") == EXPECTED[name]


def test_a_recorded_object_is_read_as_expected() -> None:
    assert failures(check_read, {name: name for name in sorted(EXPECTED)}) == {}


def check_written(name: str) -> None:
    data = (RECORDED / f"{name}.json").read_bytes()

    assert json.loads(CLASSES[name].decode(data, key="k").encode()) == json.loads(data)


def test_a_record_is_written_with_the_recorded_fields() -> None:
    assert failures(check_written, NAMES) == {}


def texts() -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def plain() -> st.SearchStrategy[Any]:
    """Values of JSON fields of any type."""
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts()
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(), inner, max_size=3))


SCALARS: dict[Any, Callable[[], st.SearchStrategy[Any]]] = {
    dt.datetime: lambda: st.datetimes(timezones=st.just(dt.UTC)),
    Any: plain,
    str: texts,
    int: st.integers,
    bool: st.booleans,
    float: lambda: st.floats(allow_nan=False),
}


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, for the types that records use."""
    if annotation in SCALARS:
        return SCALARS[annotation]()
    if isinstance(annotation, type) and issubclass(annotation, RecordPart):
        return records_of(annotation)
    arguments, origin = get_args(annotation), get_origin(annotation)
    if origin is tuple:
        several = arguments[-1] is ...
        members = [values_of(argument) for argument in arguments if argument is not ...]
        return st.lists(members[0], max_size=3).map(tuple) if several else st.tuples(*members)
    if origin is dict:
        return st.dictionaries(*map(values_of, arguments), max_size=3)
    if origin is Literal:
        return st.sampled_from(arguments)
    return st.one_of(st.none() if argument is type(None) else values_of(argument) for argument in arguments)


def records_of(kind: type[RecordPart]) -> st.SearchStrategy[Any]:
    fields = {name: field.annotation for name, field in kind.model_fields.items() if name != "format"}
    return st.fixed_dictionaries({name: values_of(annotation) for name, annotation in fields.items()}).map(
        lambda values: kind(**values)
    )


@settings(max_examples=examples(30, slow=True), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def check_survives(kind: type[UnversionedRecord], data: st.DataObject) -> None:
    record = data.draw(records_of(kind))

    encoded = record.encode()

    assert kind.decode(encoded, key="k") == record
    assert kind.decode(encoded, key="k").encode() == encoded
    assert set(json.loads(encoded)) == set(kind.model_fields)


def test_every_record_survives_being_written_and_read() -> None:
    assert failures(check_survives, {kind.__name__: kind for kind in CLASSES.values()}) == {}


def check_truncated(name: str) -> None:
    data = (RECORDED / f"{name}.json").read_bytes()

    for length in range(0, len(data) - 1, 7):
        with pytest.raises((ContractError, ConfigError), match=CLASSES[name].kind.unreadable_condition):
            CLASSES[name].decode(data[:length], key="k")


def test_a_truncated_record_is_rejected() -> None:
    assert failures(check_truncated, {name: name for name in sorted(set(CLASSES) - {"resume_request"})}) == {}
    assert failures(check_truncated, {"resume_request": "resume_request"}).keys() == {"resume_request"}
