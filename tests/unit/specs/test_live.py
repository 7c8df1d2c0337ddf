"""Live and clustered tables are validated against their inputs and the keys of their kind."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from deltaworks.specs.live import sum_type
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.spec_change_effects import Effect
from deltaworks.specs.spec_diff import classify_changes
from deltaworks.specs.table import TableSpec
from deltaworks.testing import declare_pipeline, declare_table

LATEST = {"kind": "latest", "key": ["view_id"], "keep": ["user_id", "played"], "expire_after_minutes": 30}
COLUMNS = {"view_id": "string", "user_id": "string", "played": "long", "price": "decimal(12,2)", "share": "float"}
COLUMNS |= {"tags": "array<string>", "ratio": "double", "org_id": "string", "origin": "string"}


def spec(live: dict[str, Any], **table: Any) -> PipelineSpec:
    heartbeats: dict[str, Any] = declare_table(
        "heartbeats",
        columns=[
            {"name": name, "path": "view_id" if name == "origin" else name, "type": kind}
            for name, kind in COLUMNS.items()
        ],
    )
    declared: dict[str, Any] = declare_pipeline(
        heartbeats | table,
        pipeline="video",
        event={"name": {"constant": "beat"}, "time": {"path": "time"}, "id": "id"},
        live=[{"name": "now", "reads": "heartbeats"} | live],
    )
    return PipelineSpec.model_validate(declared)


def reported_errors(live: dict[str, Any], **table: Any) -> list[tuple[str, str]]:
    with pytest.raises(ValidationError) as rejection:
        spec(live, **table)
    errors = rejection.value.errors()
    return [(".".join(str(part) for part in error["loc"][2:]), error["msg"]) for error in errors]


def test_latest_tables_contain_key_kept_and_ordering_columns() -> None:
    declared = spec(LATEST)
    (latest,) = declared.latest_tables

    assert list(latest.types) == ["view_id", "user_id", "played", "event_time", "_seq", "_position"]
    assert latest.sort_columns == ("event_time", "_seq", "_position")
    assert (latest.name, latest.history, latest.expire_after_minutes, latest.trigger_seconds) == (
        "now",
        "heartbeats",
        30,
        60,
    )
    assert declared.aggregation_tables == ()


def test_a_serialized_spec_equals_the_original() -> None:
    for live in (LATEST, {}, {"sum": ["price"], "distinct": ["user_id"], "distinct_error_percent": 1}):
        declared = spec(live)
        assert PipelineSpec.model_validate_json(declared.model_dump_json()) == declared


def test_latest_is_serialized_without_keys_of_counts() -> None:
    (latest,) = spec(LATEST).to_dict()["live"]
    assert not {"window_minutes", "watermark_minutes", "group_by", "sum", "distinct"} & set(latest)
    assert all(PipelineSpec.model_validate(spec(live).to_dict()) == spec(live) for live in ({}, LATEST))


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({**LATEST, "window_minutes": 60}, "window_minutes", "`latest` has one row per key and no window; remove it"),
    ({**LATEST, "watermark_minutes": 5}, "watermark_minutes", "no window"),
    ({**LATEST, "group_by": ["user_id"]}, "group_by", "no window"),
    ({**LATEST, "sum": ["played"]}, "sum", "no window"),
    ({**LATEST, "key": []}, "key", "such as key: [view_id]"),
    ({"kind": "latest", "key": ["view_id"]}, "expire_after_minutes", "such as expire_after_minutes: 30"),
    ({**LATEST, "expire_after_minutes": 0}, "expire_after_minutes", "greater than or equal to 1"),
    ({**LATEST, "key": ["view"]}, "key.0", "there is no column 'view' in this table; did you mean 'view_id'?"),
    ({**LATEST, "key": ["ratio"]}, "key.0", "'ratio' is double"),
    ({**LATEST, "key": ["event_time"]}, "key.0", "decides which row is newer"),
    ({**LATEST, "key": ["view_id", "view_id"]}, "key.1", "named twice"),
    ({**LATEST, "keep": ["usr_id"]}, "keep.0", "did you mean 'user_id'?"),
    ({**LATEST, "keep": ["view_id"]}, "keep.0", "named twice"),
    ({**LATEST, "keep": ["_seq"]}, "keep.0", "is always included"),
    ({**LATEST, "keep": ["user_id", "user_id"]}, "keep.1", "named twice"),
    ({**LATEST, "reads": "heartbeat"}, "reads", "did you mean 'heartbeats'?"),
    ({"key": ["view_id"]}, "key", "write `kind"),
    ({"expire_after_minutes": 5}, "expire_after_minutes", "write `kind"),
    ({"kind": "newest"}, "kind", "'counts' or 'latest'"),
    ({"sum": ["user_id"]}, "sum.0", "'user_id' is string; name a column of numbers"),
    ({"sum": ["prise"]}, "sum.0", "did you mean 'price'?"),
    ({"sum": ["price", "price"]}, "sum.1", "two columns price_sum"),
    ({"distinct": ["tags"]}, "distinct.0", "'tags' is array<string>"),
    ({"distinct_error_percent": 1}, "distinct_error_percent", "declare the columns"),
]


@pytest.mark.parametrize(("live", "key_path", "message"), WRONG, ids=lambda value: str(value)[:60])
def test_an_error_has_its_key_path(live: dict[str, Any], key_path: str, message: str) -> None:
    (spec_error,) = reported_errors(live)

    assert spec_error[0] == key_path
    assert message in spec_error[1]


def test_mutable_tables_cannot_have_latest_tables() -> None:
    ids = {"mutable": {"id": "view_id", "origin": "origin"}}

    texts = dict(reported_errors(LATEST, **ids))
    assert "declare `keyed` for 'heartbeats' instead" in next(
        text for key_path, text in texts.items() if key_path == "reads"
    )


def test_inputs_of_latest_tables_can_evolve_and_those_of_counts_cannot() -> None:
    assert spec(LATEST, evolve="add_columns").latest_tables
    assert reported_errors({}, evolve="add_columns")[0][0] == "reads"


@pytest.mark.parametrize(
    ("type_", "grown"),
    [
        ("int", "long"),
        ("long", "long"),
        ("float", "double"),
        ("double", "double"),
        ("decimal(12,2)", "decimal(22,2)"),
        ("decimal(35,4)", "decimal(38,4)"),
        ("string", None),
        ("date", None),
    ],
)
def test_a_sum_has_a_large_enough_type(type_: str, grown: str | None) -> None:
    assert sum_type(type_) == grown


@pytest.mark.parametrize(
    ("edit", "field", "effect"),
    [
        ({**LATEST, "keep": ["user_id"]}, "live.now.keep", Effect.RESTART),
        ({**LATEST, "key": ["user_id"], "keep": ["played", "view_id"]}, "live.now.key", Effect.RESTART),
        ({**LATEST, "expire_after_minutes": 5}, "live.now.expire_after_minutes", Effect.RESTART),
        ({**LATEST, "trigger_seconds": 5}, "live.now.trigger_seconds", Effect.RESTART),
        ({}, "live.now.kind", Effect.NEW_GENERATION),
    ],
)
def test_a_change_has_its_required_action(edit: dict[str, Any], field: str, effect: Effect) -> None:
    changes = {change.field: change.effect for change in classify_changes(spec(LATEST), spec(edit))}

    assert changes[field] == effect


def test_a_changed_declaration_changes_the_digest() -> None:
    digests = {
        spec(live).latest_tables[0].digest("history")
        for live in (LATEST, {**LATEST, "keep": ["user_id"]}, {**LATEST, "expire_after_minutes": 60})
    }

    assert len(digests) == 3
    assert spec({**LATEST, "trigger_seconds": 5}).latest_tables[0].digest("history") in digests


def table(**given: Any) -> TableSpec:
    return TableSpec(**{"name": "events", "catch_all": True, "writer": "spark", "cluster_by": ["event_name"], **given})


def test_a_clustered_table_has_no_partitions_unless_they_are_declared() -> None:
    assert table().partition_by == ()
    assert table(cluster_by=[]).partition_by == ("event_date",)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"partition_by": ["event_date"]}, "cluster_by replaces partition_by and zorder_by"),
        ({"zorder_by": ["event_name"]}, "cluster_by replaces partition_by and zorder_by"),
        ({"writer": "fan_out"}, "cluster_by needs writer: spark"),
        ({"cluster_by": ["evnt"]}, "'evnt' is not a column of this table"),
        ({"cluster_by": ["event_name", "event_id", "event_time", "_seq", "_batch_id"]}, "at most 4 items"),
    ],
    ids=str,
)
def test_conflicting_keys_are_rejected(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        table(**given)
