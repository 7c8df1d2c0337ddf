"""Every DAG's form can be sent unchanged, by the rules that `tests/dags/browser` checks in a browser."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dags.airflow_project import REPOSITORY, run_python
from tests.dags.browser.trigger_form import required

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
