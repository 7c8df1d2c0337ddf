"""The fields of pipeline specs: classifies changes by their effect on a running stream, and describes them to editors.

Changes are classified field by field, by comparing two specs; nothing else is read. Tables, columns and other named
items are matched by name; their order does not matter. The JSON Schema of pipeline.yaml is for completion and
validation in editors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deltaworks.specs.base import Spec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.spec_change_effects import (
    CHANGES_MEANING,
    CHANGES_SOURCE,
    Edit,
    Effect,
    Marker,
    NamedItems,
    OptionalSection,
)
from deltaworks.specs.table import TableSpec


@dataclass(frozen=True, slots=True)
class SpecChange:
    """A changed field and its effect. `old` or `new` is None if the item is missing; `advice` says what to do."""

    field: str
    old: Any
    new: Any
    effect: Effect
    advice: str


def classify_changes(old: PipelineSpec, new: PipelineSpec) -> list[SpecChange]:
    """Returns all changed fields with their effects, in spec order; empty if nothing changed."""
    return list(_diff(old, new, "", {"pipeline": old.pipeline, "table": ""}))


def unsafe_changes(changes: list[SpecChange]) -> list[SpecChange]:
    """Returns the changes with which the stream does not start."""
    return [change for change in changes if change.effect.is_unsafe]


def marker_of(model: type[Spec], name: str) -> Marker | None:
    """Returns the change marker in a field's annotation; None if there is none."""
    markers = (item for item in model.model_fields[name].metadata if isinstance(item, Marker))
    return next(markers, None)


def _diff(old: Spec, new: Spec, prefix: str, placeholders: Mapping[str, str]) -> Iterator[SpecChange]:
    for name in type(new).model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        field = f"{prefix}{name}"
        marker = marker_of(type(new), name)
        specs = isinstance(before, Spec) and isinstance(after, Spec)
        if isinstance(marker, Edit):
            yield _change(marker, field, before, after, placeholders)
        elif isinstance(marker, NamedItems):
            yield from _diff_by_name(marker, before, after, field, placeholders)
        elif isinstance(marker, OptionalSection) and (before is None or after is None):
            yield _change(marker.edit, field, before, after, placeholders)
        elif not specs:
            # A field without a marker is treated as unsafe.
            yield _change(CHANGES_MEANING, field, before, after, placeholders)
        elif type(before) is type(after):
            yield from _diff(before, after, f"{field}.", placeholders)
        else:
            yield _change(CHANGES_SOURCE, f"{field}.kind", before.kind, after.kind, placeholders)


def _diff_by_name(
    marker: NamedItems, old: tuple[Any, ...], new: tuple[Any, ...], field: str, placeholders: Mapping[str, str]
) -> Iterator[SpecChange]:
    before, after = ({item.name: item for item in items} for items in (old, new))
    removed = {name: item for name, item in before.items() if name not in after}
    for name, item in (after | removed).items():
        item_field = f"{field}.{name}"
        own = {**placeholders, "name": name} | ({"table": name} if isinstance(item, TableSpec) else {})
        if name not in before:
            yield _change(marker.added, item_field, None, item, own)
        elif name in removed:
            yield _change(marker.removed, item_field, item, None, own)
        else:
            yield from _diff(before[name], item, f"{item_field}.", own)


def _change(edit: Edit, field: str, old: Any, new: Any, placeholders: Mapping[str, str]) -> SpecChange:
    return SpecChange(
        field, _to_plain(old), _to_plain(new), edit.effect, edit.advice.format_map({"name": "", **placeholders})
    )


def _to_plain(value: Any) -> Any:
    """Converts a value to plain data, for output and records."""
    if isinstance(value, Spec):
        return value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, tuple):
        return [_to_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _to_plain(item) for name, item in value.items()}
    return value


#: Lists for which the loader accepts a single value.
_SCALAR_OR_LIST_KEYS = (
    "id",
    "path",
    "by",
    "newest_by",
    "key",
    "keep",
    "sum",
    "distinct",
    "y",
    "entity",
    "inhibited_by",
    "subject",
)


def pipeline_json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of pipeline.yaml. As in the loader, a single value can replace a list, and sizes can have
    units.
    """
    schema = PipelineSpec.model_json_schema(mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Deltaworks pipeline"
    _allow_short_forms(schema)
    source = schema["properties"]["source"]
    schema["properties"] |= {
        "source": {"anyOf": [source, {"type": "string", "description": "the name of one of `sources`"}]},
        "sources": {"type": "object", "additionalProperties": source},
    }
    return schema


def _allow_short_forms(node: Any) -> None:
    if isinstance(node, list):
        for item in node:
            _allow_short_forms(item)
    if not isinstance(node, dict):
        return
    for name, field in list(node.get("properties", {}).items()):
        if name in _SCALAR_OR_LIST_KEYS and field.get("type") == "array":
            node["properties"][name] = {"anyOf": [field, {"type": "string"}]}
        elif name in ("when", "deleted_when"):
            values = field["additionalProperties"]
            field["additionalProperties"] = {"anyOf": [values, values["items"]]}
        elif "bytes" in name and field.get("type") == "integer":
            node["properties"][name] = {"anyOf": [field, {"type": "string", "pattern": r"^\d+\s*(B|KiB|MiB|GiB)?$"}]}
    for value in node.values():
        _allow_short_forms(value)
