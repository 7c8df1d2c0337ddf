"""Every change of a spec has an effect; unsafe changes are separated from the others."""

from __future__ import annotations

import copy
import types
import typing
from typing import Any

import pytest

from deltaworks.specs.base import Spec
from deltaworks.specs.mutation import REQUEST_COLUMNS, MutableSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.record_sources import KafkaSourceSpec
from deltaworks.specs.spec_change_effects import Edit, Effect, NamedItems, OptionalSection
from deltaworks.specs.spec_diff import classify_changes, marker_of, unsafe_changes
from deltaworks.specs.table import ColumnSpec, TableSpec
from deltaworks.testing import declare_pipeline, declare_table

DECLARED: dict[str, Any] = declare_pipeline(
    {"name": "events", "catch_all": True},
    declare_table("orders", "amount decimal(12,2)", "country string", when="order"),
    declare_table(
        "contacts",
        *(
            f"{name} string from {path}"
            for name, path in (("org_id", "org"), ("id", "id"), ("origin", "id"), ("lead", "id"))
        ),
        when="contact",
        partition_by=["org_id"],
        mutable={"id": "id", "origin": "origin"},
    ),
    declare_table(
        "requests", *(f"{name} {kind} from request.{name}" for name, kind in REQUEST_COLUMNS.items()), when="request"
    ),
    {"name": "news", "announces": {"table": "contacts"}, "partition_by": ["ingested_date"]},
    source={"kind": "s3_sqs", "relay": "landing", "bucket": "b", "prefix": "shop/"},
    unwrap={"path": "body"},
    event={"name": {"path": "name"}, "time": {"path": "at"}, "id": ["id"]},
    mutations={"requests": "requests"},
    live=[{"name": "orders_live", "reads": "orders", "group_by": ["country"]}],
    gold={"tables": [{"name": "daily", "sql": "d.sql", "reads": ["orders"], "partition_by": "event_date"}]},
)
ORDERS = ("tables", 1)
CONTACTS = ("tables", 2)


def spec(*edits: tuple[tuple[str | int, ...], Any]) -> PipelineSpec:
    """The pipeline with values set at paths."""
    declared = copy.deepcopy(DECLARED)
    for path, value in edits:
        key_path: Any = declared
        for part in path[:-1]:
            key_path = key_path.setdefault(part, {}) if isinstance(key_path, dict) else key_path[part]
        key_path[path[-1]] = value
    return PipelineSpec.model_validate(declared)


def models_in(annotation: Any) -> set[type[Spec]]:
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return {annotation}
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        return {model for argument in typing.get_args(annotation) for model in models_in(argument)}
    return set()


def compared_models() -> list[type[Spec]]:
    """Every spec below a pipeline whose fields are compared one by one."""
    models: list[type[Spec]] = [PipelineSpec]
    for model in models:
        for name, field in model.model_fields.items():
            if not isinstance(marker_of(model, name), Edit):
                models.extend(inner for inner in models_in(field.annotation) if inner not in models)
    return models


def test_every_field_of_a_pipeline_has_an_effect() -> None:
    models = compared_models()

    assert {TableSpec, ColumnSpec, KafkaSourceSpec, MutableSpec} <= set(models)
    for model in models:
        for name, field in model.model_fields.items():
            marker, inner = marker_of(model, name), models_in(field.annotation)
            assert isinstance(marker, Edit) or inner, f"{model.__name__}.{name}: annotate it with what an edit needs"
            if isinstance(marker, NamedItems):
                named = ["name" in item.model_fields or isinstance(vars(item).get("name"), property) for item in inner]
                assert named == [True], (model, name)
            elif not isinstance(marker, Edit):
                # Only a field with a marker for it may be absent, and several models are told apart by their kind.
                absent = type(None) in typing.get_args(field.annotation)
                assert absent == isinstance(marker, OptionalSection), (model, name)
                assert len(inner) == 1 or all("kind" in item.model_fields for item in inner), (model, name)


def test_another_kind_of_source_is_one_change() -> None:
    kafka = {"kind": "kafka", "bootstrap_servers": "localhost:9092", "topics": "events"}

    changes = classify_changes(spec(), PipelineSpec.model_validate(DECLARED | {"source": kafka}))

    assert [(change.field, change.new, change.effect) for change in changes] == [
        ("source.kind", "kafka", Effect.NEW_GENERATION)
    ]


def test_every_advice_can_be_formatted() -> None:
    markers = [marker_of(model, name) for model in compared_models() for name in model.model_fields]
    edits = [marker for marker in markers if isinstance(marker, Edit)]
    edits += [marker.edit for marker in markers if isinstance(marker, OptionalSection)]
    edits += [edit for marker in markers if isinstance(marker, NamedItems) for edit in (marker.added, marker.removed)]

    assert len(edits) > 100
    for edit in edits:
        assert edit.advice.format(pipeline="p", table="t", name="n")


def test_a_spec_has_not_changed_against_itself() -> None:
    assert classify_changes(spec(), spec()) == []


def test_the_order_of_tables_and_columns_does_not_matter() -> None:
    turned = copy.deepcopy(DECLARED)
    turned["tables"].reverse()
    turned["tables"][-2]["columns"].reverse()

    assert classify_changes(spec(), PipelineSpec.model_validate(turned)) == []


COLUMNS = DECLARED["tables"][1]["columns"]
GOLD = DECLARED["gold"]["tables"]
NEW_TABLE = {"name": "refunds", "when": {"name": "refund"}}
CASES: list[tuple[str, tuple[str | int, ...], Any, Effect]] = [
    ("pipeline", ("pipeline",), "store", Effect.REFUSED),
    ("description", ("description",), "x", Effect.SAFE),
    ("owner", ("owner",), "x", Effect.SAFE),
    ("tags", ("tags",), ["x"], Effect.SAFE),
    ("source.relay", ("source", "relay"), "other", Effect.NEW_GENERATION),
    ("source.bucket", ("source", "bucket"), "other", Effect.MIXED_ROWS),
    ("source.prefix", ("source", "prefix"), "", Effect.MIXED_ROWS),
    ("source.csv", ("source", "csv"), {"delimiter": ";"}, Effect.BACKFILL),
    ("source.compression", ("source", "compression"), "gzip", Effect.RESTART),
    ("source.max_files_per_batch", ("source", "max_files_per_batch"), 7, Effect.RESTART),
    ("unwrap", ("unwrap",), None, Effect.MIXED_ROWS),
    ("event.name", ("event", "name"), {"constant": "x"}, Effect.MIXED_ROWS),
    ("event.time.path", ("event", "time"), {"path": "sent"}, Effect.MIXED_ROWS),
    ("event.time.unit", ("event", "time"), {"path": "at", "unit": "epoch_millis"}, Effect.MIXED_ROWS),
    ("event.id", ("event", "id"), ["id", "part"], Effect.MIXED_ROWS),
    ("tables.refunds", ("tables",), [*DECLARED["tables"], NEW_TABLE], Effect.BACKFILL),
    ("tables.events", ("tables",), DECLARED["tables"][1:], Effect.RESTART),
    ("tables.orders.when", (*ORDERS, "when"), {"name": ["order", "order_v2"]}, Effect.BACKFILL),
    ("tables.orders.partition_by", (*ORDERS, "partition_by"), ["country"], Effect.NEW_GENERATION),
    ("tables.orders.zorder_by", (*ORDERS, "zorder_by"), ["amount"], Effect.SAFE),
    ("tables.orders.writer", (*ORDERS, "writer"), "spark", Effect.RESTART),
    (
        "tables.orders.columns.tax",
        (*ORDERS, "columns"),
        [*COLUMNS, {"name": "tax", "path": "tax", "type": "double"}],
        Effect.BACKFILL,
    ),
    ("tables.orders.columns.amount", (*ORDERS, "columns"), COLUMNS[1:], Effect.RESTART),
    ("tables.orders.columns.amount.type", (*ORDERS, "columns", 0, "type"), "double", Effect.NEW_GENERATION),
    ("tables.orders.columns.amount.path", (*ORDERS, "columns", 0, "path"), "total", Effect.MIXED_ROWS),
    ("tables.orders.columns.amount.required", (*ORDERS, "columns", 0, "required"), True, Effect.RESTART),
    ("quarantine.retain_raw_bytes", ("quarantine", "retain_raw_bytes"), 10, Effect.RESTART),
    ("stream.trigger_seconds", ("stream", "trigger_seconds"), 5, Effect.RESTART),
    ("live.orders_live.window_minutes", ("live", 0, "window_minutes"), 5, Effect.NEW_GENERATION),
    ("live.orders_live.watermark_minutes", ("live", 0, "watermark_minutes"), 5, Effect.RESTART),
    ("live.orders_live", ("live",), [], Effect.RESTART),
    ("gold.tables", ("gold", "tables"), [{**GOLD[0], "sql": "e.sql"}], Effect.SAFE),
    ("gold.dedupe", ("gold", "dedupe"), {"within_days": 2}, Effect.SAFE),
    ("tables.contacts.mutable.id", (*CONTACTS, "mutable", "id"), "lead", Effect.MIXED_ROWS),
    ("tables.contacts.mutable.origin", (*CONTACTS, "mutable", "origin"), "lead", Effect.MIXED_ROWS),
    ("tables.news.announces", ("tables", 4, "announces", "key"), "origin", Effect.RESTART),
    ("mutations.schedule", ("mutations", "schedule"), None, Effect.SAFE),
    ("mutations.names", ("mutations", "names"), "called", Effect.MIXED_ROWS),
    ("mutations.notifications", ("mutations", "notifications"), "news", Effect.SAFE),
    ("maintenance.optimize", ("maintenance", "optimize"), False, Effect.SAFE),
]


@pytest.mark.parametrize(("field", "path", "value", "effect"), CASES, ids=lambda value: str(value)[:40])
def test_a_change_has_its_field_and_effect(field: str, path: tuple[str | int, ...], value: Any, effect: Effect) -> None:
    changes = classify_changes(spec(), spec((path, value)))

    assert [(change.field, change.effect) for change in changes] == [(field, effect)]
    assert changes[0].old != changes[0].new
    assert (unsafe_changes(changes) != []) == (effect in (Effect.MIXED_ROWS, Effect.NEW_GENERATION, Effect.REFUSED))


def test_a_format_change_makes_waiting_objects_unreadable() -> None:
    plain = (("unwrap",), None)

    changes = classify_changes(spec(plain), spec(plain, (("source", "format"), "csv")))

    assert [(change.field, change.effect) for change in changes] == [("source.format", Effect.MIXED_ROWS)]


def test_advice_contains_the_pipeline_and_the_table() -> None:
    (added,) = classify_changes(spec(), spec((("tables",), [*DECLARED["tables"], NEW_TABLE])))
    (column,) = classify_changes(
        spec(), spec(((*ORDERS, "columns"), [*COLUMNS, {"name": "tax", "path": "tax", "type": "double"}]))
    )

    assert "deltaworks reprocess shop --tables refunds --from-start" in added.advice
    assert "deltaworks reprocess shop --tables orders --from-start" in column.advice
    assert (added.old, added.new) == (None, {"name": "refunds", "when": {"name": ["refund"]}})


def test_making_a_table_mutable_or_immutable_needs_a_restart() -> None:
    fixed = copy.deepcopy(DECLARED)
    del fixed["tables"][2]["mutable"], fixed["mutations"]
    before = PipelineSpec.model_validate(fixed)

    for changes in (classify_changes(before, spec()), classify_changes(spec(), before)):
        assert [(change.field, change.effect) for change in changes] == [
            ("tables.contacts.mutable", Effect.RESTART),
            ("mutations", Effect.RESTART),
        ]


def test_several_changes_are_listed_separately() -> None:
    edited = spec((("owner",), "x"), ((*ORDERS, "columns", 0, "type"), "double"), (("stream", "trigger_seconds"), 1))

    assert [change.effect for change in classify_changes(spec(), edited)] == [
        Effect.SAFE,
        Effect.NEW_GENERATION,
        Effect.RESTART,
    ]
