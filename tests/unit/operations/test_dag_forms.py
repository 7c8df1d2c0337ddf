"""A form that several operations share: each keeps its options, and a run executes the one that was chosen."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.errors import ConfigError
from deltaworks.operations.base import Operation
from deltaworks.operations.dag_forms import DagForm, dag_forms, form_by_kind, form_of, triggered_forms
from deltaworks.operations.options import option_fields, read_options
from deltaworks.operations.registry import OPERATIONS, get_operation
from deltaworks.testing import pipeline_spec
from tests.examples import examples
from tests.unit.operations.option_values import options_of

RECOVER, RESTORE, CONTROL = form_by_kind("recover"), form_by_kind("restore"), form_by_kind("control")


def test_every_operation_is_in_exactly_one_form() -> None:
    forms = [form for scope in ("pipeline", "relay", "namespace") for form in dag_forms(_operations_on(scope))]

    assert sorted(one.name for form in forms for one in form.operations) == sorted(OPERATIONS)
    assert all(form_of(one) == form for form in forms for one in form.operations)


def test_a_pipeline_has_at_most_eleven_dags() -> None:
    kinds = {form.kind for form in dag_forms(_operations_on("pipeline"))} | {"stream", "feeds"}

    # `models` and `find_lost_events` are for pipelines with models and with a collector.
    assert len(kinds - {"models", "find_lost_events"}) <= 11
    assert [form.kind for form in triggered_forms(_operations_on("pipeline"))] == [
        "control",
        "reprocess",
        "restore",
        "replay",
        "recover",
    ]


def _operations_on(scope: str) -> list[Operation]:
    return [one for one in OPERATIONS.values() if one.scope == scope]


def test_the_actions_of_a_form_are_words_of_its_commands() -> None:
    assert list(CONTROL.actions) == ["annotate", "silence", "resume", "stop", "start", "restart", "unpin"]
    assert list(RECOVER.actions) == ["log", "files", "table", "checkpoint"]
    assert list(RESTORE.actions) == ["restore", "start_over"]
    assert (RESTORE.default_action, RECOVER.default_action) == ("restore", None)


@pytest.mark.parametrize("declared", OPERATIONS.values(), ids=OPERATIONS)
def test_options_pass_through_the_shared_form_unchanged(declared: Operation) -> None:
    form, model = form_of(declared), declared.options_model()

    @examples_of(declared)
    def unchanged(options: Any) -> None:
        params = {field.name: field.default for field in form.fields()} | form.run_values(declared, options)
        assert read_options(model, form.option_values(declared, params)) == options
        assert form.deselect(declared, form.run_values(declared, options)) == options.model_dump(mode="json")

    unchanged()


def examples_of(declared: Operation) -> Any:
    from hypothesis import HealthCheck, settings

    def decorate(function: Any) -> Any:
        limited = settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
        return limited(given(options_of(declared))(function))

    return decorate


def test_an_option_of_another_action_is_refused_with_the_actions_that_have_it() -> None:
    with pytest.raises(ConfigError, match="OPTION_INVALID") as raised:
        RESTORE.option_values(get_operation("start_over"), {"action": "start_over", "to_batch": 7})

    assert "`pipelines start-over` has no such option" in raised.value.message
    assert raised.value.hint.endswith("it is an option of: restore.")


@pytest.mark.parametrize("action", [None, "", "tables"])
def test_a_form_without_default_needs_one_of_its_actions(action: str | None) -> None:
    with pytest.raises(ConfigError, match="log, files, table, checkpoint"):
        RECOVER.chosen({"action": action})
    assert RESTORE.chosen({"action": None}).name == "restore"


def test_where_operations_differ_the_help_says_so_and_each_applies_its_own_default() -> None:
    fields = {field.name: field for field in form_by_kind("replay").fields()}

    limit = fields["limit"]
    assert limit.default is None
    assert limit.help == (
        "quarantine: Maximum number of rows, oldest first. "
        "feed: Maximum number of changes; more are rejected. Default: 100000."
    )
    assert list(fields)[-1] == "dry_run"
    assert fields["dry_run"].default is True


def test_an_option_of_a_single_action_is_in_its_section_unless_it_is_the_default_action() -> None:
    sections = {field.name: field.section for field in form_by_kind("gold").fields()}
    control = {field.name: field.section for field in CONTROL.fields()}

    of_verify = {"max_partitions": "Verify", "max_megabytes": "Verify"}
    assert sections == {"tables": "", "dates": "", "full": "", "spark": "Engine", "dry_run": "Refresh"} | of_verify
    assert (control["cause"], control["text"], control["table"]) == ("Silence", "Annotate", "Resume")
    assert control["reason"] == control["wait_seconds"] == ""


def test_an_option_is_required_only_if_all_actions_require_it() -> None:
    required = {field.name for field in form_by_kind("recover").fields() if field.required}

    assert required == set()
    assert {field.name for field in option_fields(get_operation("recover_log").options_model()) if field.required} == {
        "table"
    }


@given(steps=st.lists(st.sampled_from([one.name for one in form_by_kind("maintenance").operations]), unique=True))
def test_a_form_with_steps_reads_the_options_of_each_of_its_operations_alone(steps: list[str]) -> None:
    form = form_by_kind("maintenance")
    params = {"steps": steps, "age_hours": 200, "retention_hours": 300}

    assert form.has_steps
    assert form.option_values(get_operation("remove_orphans"), params)["age_hours"] == 200
    assert "age_hours" not in form.option_values(get_operation("vacuum_tables"), params)
    assert form.option_values(get_operation("rebuild_gold"), params) == {}, "it is a step, but has a form of its own"


def test_two_types_of_an_option_cannot_share_a_form() -> None:
    odd = DagForm(kind="odd", operations=(get_operation("restore"), get_operation("replay_quarantine")))

    with pytest.raises(TypeError, match="several types"):
        odd.fields()


def test_a_form_of_reprocess_begins_with_what_people_want_and_has_no_field_of_other_sources() -> None:
    form = form_by_kind("reprocess")
    files = pipeline_spec({"name": "orders", "catch_all": True}, event={"name": {"path": "n"}, "time": {"path": "t"}})

    fields = form.fields_for(files)

    assert [field.name for field in fields if not field.section] == ["events", "arrived", "tables", "dry_run"]
    assert "offsets" not in {field.name for field in fields}
    assert {"files", "file_list"} < {field.name for field in fields}
    assert {field.name for field in form.fields()} - {field.name for field in fields} == {"offsets"}
    texts = [field.help for one in OPERATIONS.values() for field in option_fields(one.options_model())]
    assert not [text for text in texts if re.search(r"--[a-z]|\brepeatable\b|`deltaworks ", text)], (
        "no words of commands"
    )
