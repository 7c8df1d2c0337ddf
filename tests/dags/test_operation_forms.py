"""The form of a DAG: the options of its operations as fields, and every DAG's form can be sent unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaworks.operations.base import Operation
from deltaworks.operations.dag_forms import DagForm, form_by_kind, form_of
from deltaworks.operations.job import build_parser
from deltaworks.operations.options import OptionField, Options, from_argument, option_fields, read_options
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.pipeline import PipelineSpec
from tests.dags.airflow_project import REPOSITORY, run_python
from tests.dags.browser.trigger_form import required
from tests.dags.test_mutation_dags import ENVIRONMENT
from tests.dags.test_operation_dags import SHOP
from tests.examples import examples
from tests.unit.operations.option_values import options_of, required_options

each_operation = pytest.mark.parametrize("declared", OPERATIONS.values(), ids=OPERATIONS)
#: What Airflow's form may submit for a field that was left empty or was cleared.
EMPTY = {
    "text": (None, ""),
    "integer": (None,),
    "number": (None,),
    "names": (None, []),
}


def params_of(declared: Operation) -> Any:
    """Returns the params of a form that has only this operation."""
    from deltaworks.airflow.operation_dags import form_params

    form = DagForm(kind=declared.kind, operations=(replace(declared, action="", actions_from=""),))
    return form_params(form, SHOP if declared.scope == "pipeline" else None)


def fields_of(declared: Operation) -> dict[str, OptionField]:
    """The options that the form of SHOP has, which reads files."""
    fields = option_fields(declared.options_model())
    return {field.name: field for field in fields if field.source in ("", "objects")}


def options_from(declared: Operation, params: dict[str, Any]) -> Options:
    """Returns the options of the operation's job for the submitted form of its DAG."""
    from deltaworks.airflow.operation_dags import operation_task

    form = form_of(declared)
    task: Any = operation_task(declared.name, "shop", ENVIRONMENT, form=form)
    arguments = [f"--{declared.scope}", "shop", *task.option_arguments({"params": form.select(declared, params)})]
    words = vars(build_parser(declared).parse_args(arguments))
    return read_options(declared.options_model(), from_argument(words["options"]))


def plain(options: Options) -> dict[str, Any]:
    """Returns options as a form submits them: JSON has lists and no tuples."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options}


def defaults(declared: Operation) -> dict[str, Any]:
    form = {name: param.value for name, param in params_of(declared).items()}
    return form | required_options(declared.options_model(), "orders")


@each_operation
def test_a_form_has_the_options_with_their_defaults_and_their_help(declared: Operation) -> None:
    form, fields = params_of(declared), fields_of(declared)

    assert list(form) == list(fields)
    for name, field in fields.items():
        assert form[name].description == field.help, name
        if not field.required:
            assert form[name].value == (field.default or None if field.kind == "names" else field.default), name
            assert form[name].resolve() == form[name].value, "the default is valid"


@each_operation
def test_an_unchanged_form_can_be_submitted_unless_an_option_is_required(declared: Operation) -> None:
    for name, field in fields_of(declared).items():
        param = params_of(declared)[name]
        optional = "null" in param.schema["type"] if isinstance(param.schema["type"], list) else False
        value = None if field.required else param.value

        disables_trigger = not optional and value in (None, "")
        assert disables_trigger == field.required, name


@each_operation
def test_an_empty_or_cleared_field_means_the_default(declared: Operation) -> None:
    form = params_of(declared)
    expected = options_from(declared, defaults(declared))

    for name, field in fields_of(declared).items():
        if field.required or field.default not in (None, ()):
            continue
        for empty in EMPTY[field.kind]:
            if empty != "":
                assert form[name].resolve(empty) == empty, name
            assert options_from(declared, defaults(declared) | {name: empty}) == expected, name
    assert expected == read_options(declared.options_model(), required_options(declared.options_model(), "orders"))


@each_operation
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_form_has_the_options_of_the_command(declared: Operation, data: st.DataObject) -> None:
    options = data.draw(options_of(declared))

    assert options_from(declared, plain(options)) == options


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("table", "clicks"),
        ("repair", "both"),
        ("to_batch", -1),
        ("to_batch", "3"),
        ("max_rows", 1.5),
        ("dry_run", None),
    ],
)
def test_an_invalid_param_is_rejected_before_the_run_starts(name: str, wrong: Any) -> None:
    from airflow.sdk.exceptions import AirflowException

    with pytest.raises((AirflowException, ValueError)):
        params_of(OPERATIONS["restore"])[name].resolve(wrong)


def test_the_tables_of_the_pipeline_are_offered_where_an_option_names_one() -> None:
    one = params_of(OPERATIONS["restore"])["table"].schema
    several = params_of(OPERATIONS["optimize_tables"])["tables"].schema
    gold = params_of(OPERATIONS["refresh_gold"])["tables"].schema

    assert one["enum"] == [None, "orders", "quarantine"]
    assert (several["examples"], several["items"]) == (["orders"], {"type": "string", "enum": ["orders"]})
    assert gold["examples"] == ["daily"]
    assert params_of(OPERATIONS["recover_table"])["table"].schema["enum"] == ["orders", "quarantine"]


def test_a_table_that_some_actions_need_is_not_offered_as_all_tables() -> None:
    from deltaworks.airflow.operation_dags import form_params

    def unset(kind: str) -> str:
        return str(form_params(form_by_kind(kind), SHOP)["table"].schema["values_display"]["null"])

    assert (unset("restore"), unset("recover"), unset("control")) == ("(all tables)", "(not set)", "(not set)")


@pytest.mark.parametrize("dag_id", ["maintenance", "gold", "mutations"])
def test_the_forms_of_scheduled_dags_can_be_submitted_unchanged(dag_id: str) -> None:
    from deltaworks.airflow.maintenance_dags import maintenance_dag
    from deltaworks.airflow.scheduled_dags import gold_dag, mutation_dag
    from tests.dags.test_mutation_dags import CRM

    crm = PipelineSpec.model_validate(CRM)
    dag: Any = {
        "maintenance": lambda: maintenance_dag(SHOP, ENVIRONMENT),
        "gold": lambda: gold_dag(SHOP, ENVIRONMENT),
        "mutations": lambda: mutation_dag(crm, ENVIRONMENT),
    }[dag_id]()

    dag.params.validate()
    for name in dag.params:
        param = dag.params.get_param(name)
        assert "null" in param.schema["type"] or param.value not in (None, ""), name


PARAMS = """
import json
from airflow.dag_processing.dagbag import DagBag
print(json.dumps({
    name: {key: dag.params.get_param(key).dump() for key in dag.params}
    for name, dag in DagBag().dags.items() if dag.params
}))
"""


@pytest.fixture(scope="module")
def forms() -> Any:
    return run_python(PARAMS, REPOSITORY)


def test_no_form_requires_an_optional_value(forms: Any) -> None:
    empty_texts = [
        f"{dag_id}.{name}"
        for dag_id, params in forms.items()
        for name, param in params.items()
        if required(param["schema"]) and param["value"] == ""
    ]

    assert empty_texts == []


def test_every_field_has_a_type_and_a_title(forms: Any) -> None:
    for dag_id, params in forms.items():
        for name, param in params.items():
            assert {"type", "title"} <= set(param["schema"]), (dag_id, name)


def test_an_optional_choice_has_a_labelled_null(forms: Any) -> None:
    choices = {
        (dag_id, name): param["schema"]
        for dag_id, params in forms.items()
        for name, param in params.items()
        if "enum" in param["schema"] and not required(param["schema"])
    }

    assert choices
    for where, schema in choices.items():
        assert None in schema["enum"], where
        assert set(schema["values_display"]) == {"null"}, where
