"""The `privacy` section: every error is reported at its key path with advice."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pydantic import ValidationError

from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.privacy import PrivacySpec
from deltaworks.specs.project import load_catalog
from deltaworks.specs.spec_change_effects import Effect
from deltaworks.specs.spec_diff import classify_changes
from deltaworks.testing import declare_pipeline, declare_table

PRIVACY: dict[str, Any] = {
    "namespace": "players",
    "subject": ["params.player_id", "params.device_id"],
    "fields": [
        {"path": "params.player_id", "action": "token", "as": "player"},
        {"path": "params.device_id", "action": "token", "as": "device"},
        {"path": "params.email", "action": "vault", "as": "email"},
        {"path": "params.friends[].name", "action": "drop"},
        {"path": "ip", "action": "truncate_ip"},
    ],
    "scan": {"email": "count"},
    "regulation": {
        "child": {"when": {"params.age_group": "under_13"}, "drop": "ip"},
        "opt_out": {"when": {"consent.analytics": False}},
    },
}
DECLARED: dict[str, Any] = declare_pipeline(
    declare_table(
        "orders",
        "player_id string from params.player_id required",
        "device_id string from params.device_id",
        "address string from ip",
        "country string",
        "friends array<struct<name: string, level: int>> from params.friends",
        when="order",
        zorder_by=["player_id"],
    ),
    event={"name": {"path": "name"}, "time": {"path": "at"}, "id": "id"},
    privacy=PRIVACY,
    live=[{"name": "by_country", "reads": "orders", "group_by": ["country"]}],
)
KAFKA = {"kind": "kafka", "bootstrap_servers": "broker:9092", "topics": ["shop"], "format": "json"}
Edit = tuple[tuple[str | int, ...], Any]
COLUMNS = ("tables", 0, "columns")
FIELDS = ("privacy", "fields")


def declared(*edits: Edit) -> dict[str, Any]:
    data = copy.deepcopy(DECLARED)
    for path, value in edits:
        key_path: Any = data
        for part in path[:-1]:
            key_path = key_path.setdefault(part, {}) if isinstance(key_path, dict) else key_path[part]
        key_path[path[-1]] = value
    return data


def problem(*edits: Edit) -> tuple[str, str]:
    """The place and the text of the one mistake."""
    with pytest.raises(ValidationError) as rejection:
        PipelineSpec.model_validate(declared(*edits))
    (error,) = rejection.value.errors()
    return ".".join(map(str, error["loc"])), error["msg"]


def test_a_valid_spec_is_serialized_as_declared() -> None:
    spec = PipelineSpec.model_validate(declared())
    written = spec.model_dump(mode="json", exclude_unset=True)["privacy"]

    assert spec.privacy is not None
    assert spec.privacy.kinds == ("device", "email", "player")
    assert written["fields"] == PRIVACY["fields"]
    assert PipelineSpec.model_validate_json(spec.model_dump_json()) == spec


def test_declarations_apply_to_nested_values() -> None:
    privacy = PrivacySpec.model_validate(PRIVACY)

    assert privacy.field_for("params") is None
    assert [getattr(privacy.field_for(path), "path", None) for path in ("params.email", "params.email.host", "ip")] == [
        "params.email",
        "params.email",
        "ip",
    ]
    assert getattr(privacy.field_for("params.friends.name"), "action", None) == "drop"


@pytest.mark.parametrize(
    ("edits", "key_path", "text"),
    [
        ([((*FIELDS, 0, "path"), "$.params.email")], "privacy.fields.0.path", "write params.email"),
        (
            [((*FIELDS, 0, "path"), "params.friends[0].name")],
            "privacy.fields.0.path",
            "separate names by dots, and write [] after a list to select its elements, "
            "such as eventParams.friends[].name",
        ),
        (
            [((*FIELDS, 2), {"path": "params.email_id", "action": "vault"})],
            "privacy.fields.2.as",
            "such as as: email",
        ),
        (
            [((*FIELDS, 4), {"path": "ip", "action": "drop", "as": "ip"})],
            "privacy.fields.4.as",
            "only tokens have a kind, and",
        ),
        ([((*FIELDS, 4, "path"), "params.email.host")], "privacy.fields.4.path", "overlap"),
        (
            [(("privacy", "subject"), ["params.playerid"])],
            "privacy.subject",
            "did you mean 'params.player_id'?",
        ),
        (
            [(("privacy", "erase"), {"purge_within_days": 30})],
            "privacy.erase.purge_within_days",
            "write fewer than deadline_days (30)",
        ),
        ([((*COLUMNS, 0, "type"), "long")], "tables.0.columns.0.type", "declare type: string"),
        ([((*COLUMNS, 2, "type"), "int")], "tables.0.columns.2.type", "becomes an address, a string"),
        (
            [
                ((*COLUMNS, 4, "type"), "array<struct<name: int>>"),
                ((*FIELDS, 3), {"path": "params.friends[].name", "action": "token", "as": "player"}),
            ],
            "tables.0.columns.4.type",
            "'params.friends[].name' becomes a token, a string",
        ),
        (
            [((*COLUMNS, 0, "path"), "params.friends.name")],
            "tables.0.columns.0.required",
            "is dropped: the column is always null",
        ),
        ([((*COLUMNS, 1, "path"), "params.email.host")], "tables.0.columns.1.path", "use the path"),
        (
            [(("tables", 0, "partition_by"), ["device_id"])],
            "tables.0.partition_by.0",
            "file paths and log of the table would contain its values, which cannot be erased there",
        ),
        ([(("tables", 0, "zorder_by"), ["address"])], "tables.0.zorder_by.0", ") and not a token"),
        ([(("live", 0, "group_by"), ["device_id"])], "live.0.group_by.0", "use a gold table"),
        (
            [(("maintenance", "vacuum_dry_run"), True)],
            "maintenance.vacuum_dry_run",
            "write vacuum_dry_run: false",
        ),
        (
            [(("maintenance", "vacuum_retention_hours"), 192)],
            "maintenance.vacuum_retention_hours",
            "write at most vacuum_retention_hours: 168",
        ),
        (
            [(("maintenance", "time_travel_hours"), 720)],
            "maintenance.time_travel_hours",
            "write at most time_travel_hours: 168",
        ),
        ([(("event", "name", "path"), "params.email")], "event.name.path", "choose another field"),
        ([(("event", "id"), "ip")], "event.id", "does not identify events after redaction"),
        ([(("private",), [{"path": "ip", "keep": "network"}])], "private.0.path", "remove it here"),
        ([(("tables", 0, "erase"), "keep")], "tables.0.erase", "give the reason"),
        ([(("tables", 0, "erase_reason"), "invoices")], "tables.0.erase_reason", "it requires `erase"),
        (
            [(("tables", 0, "partition_by"), []), (("tables", 0, "retention_days"), 90)],
            "tables.0.retention_days",
            "partition the table by event_date",
        ),
        ([(("source",), KAFKA), (("archive",), {"retain_days": 7})], "archive", "remove one of the two"),
    ],
)
def test_conflicts_of_personal_data_are_reported_at_their_key_paths(
    edits: list[Edit], key_path: str, text: str
) -> None:
    at, message = problem(*edits)

    assert at == key_path
    assert text in message


def test_changes_of_personal_data_are_unsafe_and_those_of_erasure_terms_are_safe() -> None:
    before = PipelineSpec.model_validate(declared())
    other_kind = PipelineSpec.model_validate(declared(((*FIELDS, 0, "as"), "gamer")))
    other_terms = PipelineSpec.model_validate(declared((("privacy", "erase"), {"purge_within_days": 14})))

    assert {change.effect for change in classify_changes(before, other_kind)} == {Effect.MIXED_ROWS}
    assert {change.effect for change in classify_changes(before, other_terms)} == {Effect.SAFE}


@pytest.mark.parametrize("environment", ["local", "compose"])
def test_loaded_specs_have_the_key_service_of_their_environment(
    environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Outside `local` a secret that is blank is refused.
    monkeypatch.setattr("deltaworks.specs.loading.check_secrets", lambda *_args, **_options: None)
    catalog = load_catalog(environment, root=PROJECT_ROOT)
    private = [spec.privacy for spec in catalog.pipelines.values() if spec.privacy is not None]

    assert catalog.environment.privacy is not None
    assert private
    assert {id(privacy.service) for privacy in private} == {id(catalog.environment.privacy)}
