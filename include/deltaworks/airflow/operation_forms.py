"""Builds the trigger form of a DAG: one field for each option, derived from the declaration of its operations.

Airflow 3.3's form behaves as follows, as observed in a browser. A field is required if its schema's type does not allow
null, and an empty required field (an empty text included) disables Trigger. Clearing a field submits null. A choice
needs null in its `enum` to be optional, and shows it as "null" unless `values_display` names it; the choices of a list
are its `examples`. So an option without a default is `["null", type]` with default null. Fields without a section come
first, expanded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import ParamsDict

from deltaworks.operations.dag_forms import ACTION, STEPS, DagForm
from deltaworks.operations.options import OptionField
from deltaworks.specs.pipeline import PipelineSpec

_TYPES = {"text": "string", "integer": "integer", "number": "number", "switch": "boolean", "names": "array"}


def form_params(form: DagForm, spec: PipelineSpec | None = None) -> dict[str, Param]:
    """Returns the params of a DAG: the field that selects operations, if it has several, and one per option.

    Args:
        spec: the pipeline whose tables are offered as choices; None for a relay or a namespace.
    """
    params = {field.name: option_param(field, spec) for field in form.fields_for(spec)}
    if form.actions:
        return {ACTION: _action_param(form), **params}
    if form.has_steps:
        return {STEPS: steps_param([operation.name for operation in form.operations]), **params}
    return params


def _action_param(form: DagForm) -> Param:
    summaries = {operation: ", ".join(operation.actions) for operation in form.operations}
    help_text = " ".join(f"{actions}: {operation.summary}" for operation, actions in summaries.items())
    default: dict[str, Any] = {} if form.default_action is None else {"default": form.default_action}
    return Param(**default, type="string", enum=list(form.actions), title="Action", description=help_text)


def steps_param(steps: Sequence[str]) -> Param:
    """Returns the field that restricts a run to some of the DAG's steps."""
    return Param(
        None,
        type=["null", "array"],
        items={"type": "string", "enum": list(steps)},
        examples=list(steps),
        title="Steps",
        description="Only these steps, in the order of the DAG; by default all.",
    )


def set_form(dag: DAG, form: Mapping[str, Param]) -> None:
    """Sets a DAG's params after its tasks were created.

    If params are set before, each task copies them several times and stores them in the database again, which takes a
    third of the parsing time. Runs read the DAG's params.
    """
    dag.params = ParamsDict(dict(form))


def option_param(field: OptionField, spec: PipelineSpec | None = None) -> Param:
    """Returns an option as a form field."""
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
        unset_label = "(not set)" if field.choices or field.is_needed else "(all tables)"
        return optional_choice(choices, unset_label=unset_label, **schema)
    return Param(None, type=["null", kind], **schema)


def optional_choice(names: Sequence[str], *, unset_label: str, **schema: Any) -> Param:
    """Returns an optional choice field without a default.

    Args:
        unset_label: the label of the empty choice.
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
