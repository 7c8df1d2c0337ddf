"""The form of an operation: a field for each of its options, derived from their declaration.

What Airflow 3.3's form does with a field, as seen in a browser: a field is required where its schema's type allows no
null, and a required field that is empty, an empty text included, disables Trigger. Clearing a field submits null. A
choice needs null among its `enum` to be left open, and shows that as "null" unless `values_display` names it; the
choices of a list are its `examples`. So an option without a value of its own is `["null", type]` with the default null.
Fields without a section come first and open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import ParamsDict

from deltaworks.operations.base import Operation
from deltaworks.operations.options import OptionField, option_fields
from deltaworks.specs.pipeline import PipelineSpec

_TYPES = {"text": "string", "integer": "integer", "number": "number", "switch": "boolean", "names": "array"}


def operation_form(declared: Operation, spec: PipelineSpec | None = None) -> dict[str, Param]:
    """The params of an operation's DAG, one for each option, with the same defaults and help as its command.

    Args:
        spec: the pipeline whose tables are offered; None for a relay.
    """
    return {field.name: option_param(field, spec) for field in option_fields(declared.options_model())}


def set_form(dag: DAG, form: Mapping[str, Param]) -> None:
    """Give a DAG its form, once its tasks are made: of a form that is there before, each task copies all of it several
    times and has it written into the database again, which is a third of what parsing takes. Runs read the DAG's.
    """
    dag.params = ParamsDict(dict(form))


def option_param(field: OptionField, spec: PipelineSpec | None = None) -> Param:
    """One option as a field of a form."""
    schema: dict[str, Any] = {"title": field.name.replace("_", " ").capitalize(), "description": field.help}
    if field.section:
        schema["section"] = field.section
    if field.minimum is not None:
        schema["minimum"] = field.minimum
    if field.maximum is not None:
        schema["maximum"] = field.maximum
    choices = list(field.choices) or _table_choices(field, spec)
    kind = _TYPES[field.kind]
    if field.kind == "names":
        schema["items"] = {"type": "string", **({"enum": choices} if choices else {})}
        schema |= {"examples": choices} if choices else {}
        return Param(None, type=["null", "array"], **schema)
    if field.required:
        schema |= {"enum": choices} if choices else {"minLength": 1}
        return Param(type="string", **schema)
    if field.default is not None:
        schema |= {"enum": choices} if choices else {}
        return Param(field.default, type=kind, **schema)
    if choices:
        return optional_choice(choices, unset_label="(not set)" if field.choices else "(all tables)", **schema)
    return Param(None, type=["null", kind], **schema)


def optional_choice(names: Sequence[str], *, unset_label: str, **schema: Any) -> Param:
    """A field that offers texts and is left open by default.

    Args:
        unset: what the form shows in place of a choice.
    """
    return Param(None, type=["null", "string"], enum=[None, *names], values_display={"null": unset_label}, **schema)


def _table_choices(field: OptionField, spec: PipelineSpec | None) -> list[str]:
    if field.tables is None or spec is None:
        return []
    names = {
        "bronze": [table.name for table in spec.tables],
        "keyed": [table.name for table in spec.keyed_tables],
        "quarantine": ["quarantine"],
        "gold": [table.name for table in spec.gold.tables],
        "model": [model.name for model in spec.models],
    }
    return [name for kind in field.tables.kinds for name in names[kind]]
