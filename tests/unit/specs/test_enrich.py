"""Specs of look-ups and private fields: every error is reported at its key path."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pydantic import ValidationError

from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.spec_change_effects import Effect
from deltaworks.specs.spec_diff import classify_changes
from deltaworks.testing import declare_pipeline, declare_table

GEO = {
    "name": "geo",
    "kind": "mmdb",
    "path": "c-ip",
    "database": "geo/City.mmdb",
    "fields": {"country": "country.iso_code"},
}
DECLARED: dict[str, Any] = declare_pipeline(
    declare_table(
        "requests", "network string from c-ip", "country string from _geo.country", "cookie string from cs(Cookie)"
    ),
    pipeline="cdn",
    source={"kind": "s3_sqs", "relay": "cdn", "bucket": "cdn", "format": "tsv"},
    event={"name": {"constant": "request"}, "time": {"path": "datetime"}, "id": "x-edge-request-id"},
    enrich=[GEO, {"name": "agent", "kind": "user_agent", "path": "cs(User-Agent)"}],
    private=[{"path": "c-ip", "keep": "network"}, {"path": "cs(Cookie)", "keep": "nothing"}],
)


def declared(*edits: tuple[tuple[str | int, ...], Any]) -> dict[str, Any]:
    data = copy.deepcopy(DECLARED)
    for path, value in edits:
        key_path: Any = data
        for part in path[:-1]:
            key_path = key_path[part]
        key_path[path[-1]] = value
    return data


def problem(*edits: tuple[tuple[str | int, ...], Any]) -> tuple[str, str]:
    """The place and the text of the one mistake."""
    with pytest.raises(ValidationError) as rejection:
        PipelineSpec.model_validate(declared(*edits))
    (error,) = rejection.value.errors()
    return ".".join(map(str, error["loc"])), error["msg"]


COLUMN = ("tables", 0, "columns", 1, "path")


@pytest.mark.parametrize(
    ("edit", "key_path", "text"),
    [
        ((("event", "id"), "c-ip"), "event.id", "'c-ip' is private"),
        ((("event", "id"), ["x", "cs(Cookie)"]), "event.id.1", "'cs(Cookie)' is private"),
        ((("event", "time"), {"path": "c-ip.at"}), "event.time.path", "'c-ip.at' is private"),
        ((("event", "name"), {"path": "_geo.country"}), "event.name.path", "is only available after this is read"),
        ((("tables", 0), {"name": "r", "when": {"c-ip": "x"}}), "tables.0.when.c-ip", "'c-ip' is private"),
        (
            (("tables", 0), {"name": "r", "when": {"_geo.country": "GB"}}),
            "tables.0.when._geo.country",
            "is only available after this is read",
        ),
        ((("enrich", 1, "path"), "_geo.country"), "enrich.1.path", "is only available after this is read"),
        ((("enrich", 1, "name"), "geo"), "enrich.1.name", "declared twice"),
        ((("enrich", 1, "name"), "record"), "enrich.1.name", "_record is reserved"),
        ((("enrich", 1, "name"), "batch_id"), "enrich.1.name", "_batch_id is reserved"),
        ((COLUMN, "_geo.contry"), ".".join(map(str, COLUMN)), "did you mean 'country'"),
        ((COLUMN, "_goe.country"), ".".join(map(str, COLUMN)), "did you mean '_geo'"),
        ((COLUMN, "_agent.is_robot"), ".".join(map(str, COLUMN)), "did you mean 'is_bot'"),
        ((("enrich", 0, "database"), None), "enrich.0.database", "name the database"),
        ((("enrich", 0, "database"), "../City.mmdb"), "enrich.0.database", "below `databases/`"),
        ((("enrich", 0, "database"), "/City.mmdb"), "enrich.0.database", "below `databases/`"),
        ((("enrich", 0, "fields"), {}), "enrich.0.fields", "give the fields of the result, such as country"),
        ((("enrich", 0, "fields"), {"country": "country..x"}), "enrich.0.fields.country", "separate names by dots"),
        ((("enrich", 1, "database"), "x.mmdb"), "enrich.1.database", "without a database"),
        ((("private", 1, "path"), "c-ip.x"), "private.1.path", "overlap"),
        ((("private", 1, "path"), "_geo.country"), "private.1.path", "is not an original field of events"),
        ((("private", 1, "path"), "_record.key"), "private.1.path", "is not an original field of events"),
        ((("tables", 0, "columns", 2, "required"), True), "tables.0.columns.2.required", "always null"),
        ((("tables", 0, "columns", 0, "type"), "long"), "tables.0.columns.0.type", "declare type: string"),
    ],
)
def test_conflicts_are_rejected_at_their_key_paths(
    edit: tuple[tuple[str | int, ...], Any], key_path: str, text: str
) -> None:
    at, messages = problem(edit)

    assert at == key_path
    assert text in messages


def test_an_archive_with_private_fields_is_rejected() -> None:
    kafka = {"kind": "kafka", "bootstrap_servers": "localhost:9092", "topics": "events"}
    data = declared((("source",), kafka), (("archive",), {"retain_days": 3}))

    with pytest.raises(ValidationError, match="an archive keeps original payloads"):
        PipelineSpec.model_validate(data)


def test_an_original_field_with_an_underscore_can_be_read() -> None:
    spec = PipelineSpec.model_validate(declared((COLUMN, "_id")))

    assert "_id" in {column.path for table in spec.tables for column in table.columns}


@pytest.mark.parametrize(
    ("edit", "field", "effect"),
    [
        ((("private",), DECLARED["private"][:1]), "private.cs(Cookie)", Effect.MIXED_ROWS),
        ((("private", 0, "keep"), "nothing"), "private.c-ip.keep", Effect.MIXED_ROWS),
        ((("private",), [*DECLARED["private"], {"path": "x", "keep": "nothing"}]), "private.x", Effect.BACKFILL),
        ((("enrich", 0, "database"), "geo/Other.mmdb"), "enrich.geo.database", Effect.BACKFILL),
        ((("enrich",), DECLARED["enrich"][:1]), "enrich.agent", Effect.RESTART),
    ],
)
def test_a_change_has_its_required_action(edit: tuple[tuple[str | int, ...], Any], field: str, effect: Effect) -> None:
    (change,) = classify_changes(PipelineSpec.model_validate(DECLARED), PipelineSpec.model_validate(declared(edit)))

    assert (change.field, change.effect) == (field, effect)
