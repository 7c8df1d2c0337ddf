"""Every DAG's Trigger form can be sent when opened and submits its values, and the rules behind this hold.

`trigger_form.py` lists the rules; this project's forms follow them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dags.airflow_project import REPOSITORY
from tests.dags.browser.airflow_site import AirflowSite, running_airflow
from tests.dags.browser.trigger_form import CHROMIUM, AirflowRest, TriggerForm, logged_in, required, value_for

pytestmark = pytest.mark.integration

#: The DAGs of `field_kinds.py`.
OWN = ("field_kinds", "required_text", "required_choices", "any_of")
FIELD_KINDS = Path(__file__).with_name("field_kinds.py")


@pytest.fixture(scope="module")
def site(airflow_database: None) -> Iterator[AirflowSite]:
    if CHROMIUM is None:
        pytest.skip("no `chromium` on the PATH, the browser that opens the forms")
    with running_airflow(project=REPOSITORY, dag_files=[FIELD_KINDS]) as site:
        yield site


@pytest.fixture(scope="module")
def rest(site: AirflowSite) -> AirflowRest:
    return AirflowRest(site)


@pytest.fixture(scope="module")
def page(site: AirflowSite) -> Iterator[Any]:
    with logged_in(site) as page:
        yield page


def _missing_on_purpose(params: dict[str, Any]) -> list[str]:
    """Returns the required params declared without a value."""
    return [name for name, param in params.items() if required(param["schema"]) and param["value"] is None]


def test_every_form_is_ready_and_submits_its_input(
    page: Any, site: AirflowSite, rest: AirflowRest, subtests: pytest.Subtests
) -> None:
    forms = {dag_id: params for dag_id in rest.dag_ids() if dag_id not in OWN and (params := rest.params(dag_id))}
    assert forms

    for dag_id, params in forms.items():
        with subtests.test(dag_id=dag_id):
            form = TriggerForm.open(page, site, dag_id, params)
            values = {name: value_for(param["schema"], param["value"]) for name, param in params.items()}
            ready = form.can_be_sent
            for name, value in values.items():
                form.fill(name, value)
            assert rest.conf(dag_id, form.send()) == values
            assert ready == (not _missing_on_purpose(params)), "the form opens with Trigger disabled"


def _open(page: Any, site: AirflowSite, rest: AirflowRest, dag_id: str) -> TriggerForm:
    return TriggerForm.open(page, site, dag_id, rest.params(dag_id))


def test_a_form_of_optional_fields_can_be_sent_unchanged(page: Any, site: AirflowSite, rest: AirflowRest) -> None:
    form = _open(page, site, rest, "field_kinds")

    assert form.can_be_sent
    conf = rest.conf("field_kinds", form.send())
    assert conf == {name: param["value"] for name, param in form.params.items()}


def test_every_kind_of_field_submits_its_input(page: Any, site: AirflowSite, rest: AirflowRest) -> None:
    form = _open(page, site, rest, "field_kinds")
    values = {name: value_for(param["schema"], param["value"]) for name, param in form.params.items()}

    for name, value in values.items():
        form.fill(name, value)

    assert rest.conf("field_kinds", form.send()) == values


def test_a_cleared_field_submits_null(page: Any, site: AirflowSite, rest: AirflowRest) -> None:
    form = _open(page, site, rest, "field_kinds")
    names = ("text", "integer", "lines", "day")

    for name in names:
        form.fill(name, value_for(form.params[name]["schema"], None))
        form.fill(name, None)

    conf = rest.conf("field_kinds", form.send())
    assert {name: conf[name] for name in names} == dict.fromkeys(names)


def test_an_empty_default_text_blocks_the_form(page: Any, site: AirflowSite, rest: AirflowRest) -> None:
    form = _open(page, site, rest, "required_text")

    assert not form.can_be_sent
    form.fill("text", "some")
    assert form.can_be_sent


def test_a_required_list_may_be_empty(page: Any, site: AirflowSite, rest: AirflowRest) -> None:
    form = _open(page, site, rest, "required_choices")

    assert required(form.params["choices"]["schema"])
    assert form.can_be_sent


def test_a_schema_without_a_type_is_a_text_field(page: Any, site: AirflowSite, rest: AirflowRest) -> None:
    form = _open(page, site, rest, "any_of")

    form.fill("hours", "7")

    with pytest.raises(AssertionError, match="is not valid under any of the given schemas"):
        form.send()
