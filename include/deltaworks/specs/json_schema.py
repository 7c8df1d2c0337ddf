"""JSON Schema of pipeline.yaml, for completion and validation in editors."""

from __future__ import annotations

from typing import Any

from deltaworks.specs.pipeline import PipelineSpec

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
