"""Converts a DAG's params into form fields, and a submitted form into the run's `conf`.

The params are read from Airflow, so form and DAG cannot differ. Invalid values are rejected as Airflow would reject
them, with the field's name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from deltaworks.operations.base import Operation
from deltaworks.operations.dag_forms import ACTION, DRY_RUN, form_of
from deltaworks.operations.options import OptionField, option_fields

FieldKind = Literal["text", "integer", "number", "switch", "choice", "choices", "lines"]
_NUMBER_KINDS: Final[Mapping[str, FieldKind]] = {"integer": "integer", "number": "number"}
MAX_CHARACTERS = 4_000


class FormError(ValueError):
    """An invalid value of a form field; `field` is the field's name."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A form field. `value` is its initial value; a field that accepts null is not `required`."""

    name: str
    title: str
    help: str
    kind: FieldKind
    required: bool
    value: Any = None
    choices: tuple[str, ...] = ()
    unset_label: str = ""
    section: str = ""
    minimum: float | None = None
    maximum: float | None = None

    def with_value(self, value: Any) -> Field:
        """Returns a copy with another value."""
        return replace(self, value=value)


def form_fields(operation: Operation, params: Mapping[str, Any]) -> tuple[Field, ...]:
    """Returns the fields of an operation from its DAG's params, without `dry_run`.

    In a form that operations share, texts, defaults and whether a value is required are those of the operation. The
    option that selects its action is a field too. Options that the DAG does not have yet are left out.
    """
    form, declared = form_of(operation), option_fields(operation.options_model())
    fields = [
        (option, form_field(option.name, params[name]))
        for option in declared
        if (name := ACTION if option.name == operation.actions_from else option.name) in params and name != DRY_RUN
    ]
    if len(form.operations) == 1:
        return tuple(field for _, field in fields)
    return tuple(_own_field(option, field) for option, field in fields)


def _own_field(option: OptionField, field: Field) -> Field:
    choices = option.choices or field.choices
    default = list(option.default) if isinstance(option.default, tuple) else option.default
    value = field.value if default in (None, []) else default
    required = option.required or (default is not None and field.kind not in ("switch", "choices", "lines"))
    return replace(field, title=_title(option.name), help=option.help, required=required, value=value, choices=choices)


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def supports_dry_run(operation: Operation) -> bool:
    """Returns whether the operation has a dry run."""
    return DRY_RUN in operation.options_model().model_fields


def prefill(fields: Sequence[Field], values: Mapping[str, Any]) -> tuple[Field, ...]:
    """Returns the fields with other initial values, given by field name, such as those of a link."""
    return tuple(field.with_value(values[field.name]) if field.name in values else field for field in fields)


def form_field(name: str, param: Mapping[str, Any]) -> Field:
    """Returns a param of a DAG as a field."""
    schema: Mapping[str, Any] = param.get("schema") or {}
    types = schema.get("type", "string")
    types = [types] if isinstance(types, str) else list(types)
    (main,) = [kind for kind in types if kind != "null"][:1] or ["string"]
    names = schema.get("enum") or (schema.get("items") or {}).get("enum") or ()
    choices = tuple(str(choice) for choice in names if choice is not None)
    value = param.get("value")
    kind: FieldKind = "text"
    if main == "boolean":
        kind = "switch"
    elif main == "array":
        kind = "choices" if choices else "lines"
    elif choices:
        kind = "choice"
    elif main in _NUMBER_KINDS:
        kind = _NUMBER_KINDS[main]
    return Field(
        name=name,
        title=str(schema.get("title") or _title(name)),
        help=str(param.get("description") or schema.get("description") or ""),
        kind=kind,
        required="null" not in types and kind != "switch",
        value=value,
        choices=choices,
        unset_label=str((schema.get("values_display") or {}).get("null", "(not set)")),
        section=str(schema.get("section") or ""),
        minimum=schema.get("minimum"),
        maximum=schema.get("maximum"),
    )


def parse_form(fields: Sequence[Field], posted: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Returns the `conf` of a submitted form, with all fields.

    A field that was not sent gets its default, except for checkboxes and multiple choices: browsers do not send them
    without a selection.

    Raises:
        FormError: a value is missing, too long, not a number, out of range or not one of the choices.
    """
    return {
        field.name: _parse_value(field, posted.get(field.name, ()))
        if field.name in posted or field.kind in ("switch", "choices", "lines")
        else _default_value(field)
        for field in fields
    }


def _default_value(field: Field) -> Any:
    if field.required and field.value is None:
        raise FormError(field.name, "a value is required")
    return field.value


def _parse_value(field: Field, texts: Sequence[str]) -> Any:
    if any(len(text) > MAX_CHARACTERS for text in texts):
        raise FormError(field.name, f"it is longer than {MAX_CHARACTERS} characters")
    if field.kind == "switch":
        return bool(texts) and texts[-1] == "on"
    if field.kind in ("choices", "lines"):
        split = [line.strip() for text in texts for line in text.splitlines()]
        selected = [line for line in split if line]
        if field.kind == "choices":
            for name in selected:
                _check_choice(field, name)
        return selected or None
    text = texts[-1].strip() if texts else ""
    if not text:
        if field.required:
            raise FormError(field.name, "a value is required")
        return None
    if field.kind == "choice":
        _check_choice(field, text)
    return _parse_number(field, text) if field.kind in _NUMBER_KINDS else text


def _check_choice(field: Field, text: str) -> None:
    if text not in field.choices:
        raise FormError(field.name, f"{text!r} is not one of {', '.join(field.choices)}")


def _parse_number(field: Field, text: str) -> float:
    try:
        value = int(text) if field.kind == "integer" else float(text)
    except ValueError:
        raise FormError(field.name, f"{text!r} is not a number") from None
    if not math.isfinite(value):
        raise FormError(field.name, f"{text!r} is not a number")
    if field.minimum is not None and value < field.minimum:
        raise FormError(field.name, f"{text} is less than {field.minimum:g}")
    if field.maximum is not None and value > field.maximum:
        raise FormError(field.name, f"{text} is more than {field.maximum:g}")
    return value
