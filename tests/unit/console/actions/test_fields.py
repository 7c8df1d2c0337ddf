"""Form fields come from the DAG's params, submit what Airflow's form would, and reject invalid values with the
field."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from deltaworks.console.actions.fields import FormError, form_field, form_fields, parse_form, supports_dry_run
from deltaworks.operations.base import Operation
from deltaworks.operations.dag_forms import form_of
from deltaworks.operations.options import read_options
from deltaworks.operations.registry import OPERATIONS
from tests.examples import examples
from tests.offenders import failures
from tests.unit.operations.option_values import options_of, required_options


def params_of(declared: Operation) -> dict[str, Any]:
    """Returns the params of an operation's DAG as Airflow's API does."""
    from deltaworks.airflow.operation_dags import form_params

    params = {name: param.dump() for name, param in form_params(form_of(declared)).items()}
    made: dict[str, Any] = json.loads(json.dumps(params, default=str))
    return made


def submitted_values(conf: dict[str, Any]) -> dict[str, list[str]]:
    """Returns a conf as a browser submits it."""
    pairs: list[tuple[str, str]] = []
    for name, value in conf.items():
        if isinstance(value, bool):
            pairs += [(name, "on")] if value else []
        elif isinstance(value, list):
            pairs.append((name, "\n".join(value)))
        else:
            pairs.append((name, "" if value is None else str(value)))
    return parse_qs(urlencode(pairs), keep_blank_values=True)


@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def check_form(declared: Operation, data: st.DataObject) -> None:
    options = data.draw(options_of(declared))
    params, wanted = params_of(declared), options.model_dump(mode="json")
    # A browser's form takes nothing but blanks for nothing.
    assume(all(str(wanted[name]).strip() for name in required(declared)))
    wanted.pop("dry_run", None)

    conf = parse_form(form_fields(declared, params), submitted_values(wanted))

    assert set(conf) == set(wanted)
    texts = {name: value for name, value in wanted.items() if isinstance(value, str)}
    for name, value in conf.items():
        expected = wanted[name]
        if name in texts:
            expected = expected.strip() or None
        if isinstance(expected, list):
            expected = [part for text in expected for part in text.split("\n") if part.strip()] or None
        assert value == expected, name


def test_a_form_submits_what_the_command_would() -> None:
    assert failures(check_form, OPERATIONS) == {}


def check_unchanged_form(declared: Operation) -> None:
    params = params_of(declared)
    conf = parse_form(
        form_fields(declared, params),
        submitted_values({field.name: field.value for field in form_fields(declared, params)} | required(declared)),
    )

    assert read_options(declared.options_model(), conf) == read_options(declared.options_model(), required(declared))


def test_an_unchanged_form_submits_the_defaults() -> None:
    assert failures(check_unchanged_form, OPERATIONS) == {}


def required(declared: Operation) -> dict[str, Any]:
    return required_options(declared.options_model(), "orders")


def check_dry_run(declared: Operation) -> None:
    params = params_of(declared)

    assert "dry_run" not in {field.name for field in form_fields(declared, params)}
    assert supports_dry_run(declared) or not declared.destructive, "what destroys counts first"


def test_dry_run_is_not_a_form_field() -> None:
    assert failures(check_dry_run, OPERATIONS) == {}


@pytest.mark.parametrize(
    ("schema", "text", "problem"),
    [
        ({"type": "integer"}, "1.5", "is not a number"),
        ({"type": "number"}, "nan", "is not a number"),
        ({"type": "number"}, "inf", "is not a number"),
        ({"type": "integer", "minimum": 1}, "0", "is less than 1"),
        ({"type": "integer", "maximum": 9}, "10", "is more than 9"),
        ({"type": "string", "enum": ["a", "b"]}, "c", "is not one of a, b"),
        ({"type": "array", "items": {"enum": ["a"]}}, "a\nz", "'z' is not one of a"),
        ({"type": "string"}, "  ", "a value is required"),
        ({"type": ["null", "string"]}, "x" * 5000, "longer than 4000"),
    ],
)
def test_an_invalid_value_is_rejected_with_its_field(schema: dict[str, Any], text: str, problem: str) -> None:
    fields = (form_field("it", {"value": None, "schema": schema}),)

    with pytest.raises(FormError, match=problem) as raised:
        parse_form(fields, {"it": [text]})
    assert raised.value.field == "it"
