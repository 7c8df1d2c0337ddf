"""Options have the same meaning as values, as a job's arguments, and as texts of a template."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from deltaworks.errors import ConfigError
from deltaworks.operations.base import Operation
from deltaworks.operations.job import build_parser
from deltaworks.operations.options import (
    OptionField,
    Options,
    option_fields,
    read_options,
    split_names,
    to_arguments,
)
from deltaworks.operations.registry import OPERATIONS
from tests.examples import examples
from tests.offenders import failures
from tests.unit.operations.option_values import NAMES, options_of, required_options, values

EVERY_OPTION = {
    f"{declared.name}-{field.name}": (declared, field)
    for declared in OPERATIONS.values()
    for field in option_fields(declared.options_model())
}


def parsed(declared: Operation, arguments: list[str]) -> Options:
    """Returns the options that the operation's job parses from its arguments."""
    words = vars(build_parser(declared).parse_args([f"--{declared.scope}", "subject", *arguments]))
    assert words.pop(declared.scope) == "subject"
    return read_options(declared.options_model(), {name: value for name, value in words.items() if value is not None})


def required_values(declared: Operation) -> dict[str, Any]:
    return required_options(declared.options_model(), "orders")


@given(data=st.data())
def check_round_trip(declared: Operation, data: st.DataObject) -> None:
    options = data.draw(options_of(declared))

    assert parsed(declared, to_arguments(options)) == options


def test_options_survive_a_round_trip_through_job_arguments() -> None:
    assert failures(check_round_trip, OPERATIONS) == {}


def check_default_arguments(declared: Operation) -> None:
    required = required_values(declared)

    assert to_arguments(read_options(declared.options_model(), required)) == [
        f"--{name.replace('_', '-')}={value}" for name, value in required.items()
    ]


def test_only_values_that_differ_from_the_default_become_arguments() -> None:
    assert failures(check_default_arguments, OPERATIONS) == {}


def check_empty_values(option: tuple[Operation, OptionField]) -> None:
    declared, field = option
    required = required_values(declared)
    if field.required:
        with pytest.raises(ConfigError, match="OPTION_INVALID"):
            read_options(declared.options_model(), required | {field.name: None})
        return

    for empty in ("", None, "None"):
        options = read_options(declared.options_model(), required | {field.name: empty})

        assert getattr(options, field.name) == field.default, f"{empty!r}"


def test_an_empty_value_is_the_default() -> None:
    assert failures(check_empty_values, EVERY_OPTION) == {}


@settings(max_examples=examples(25))
@given(data=st.data())
def check_text_of_value(option: tuple[Operation, OptionField], data: st.DataObject) -> None:
    declared, field = option
    value = data.draw(values(field))
    text = ",".join(value) if field.kind == "names" else str(value)

    options = [
        read_options(declared.options_model(), required_values(declared) | {field.name: written})
        for written in (value, text)
    ]

    assert getattr(options[0], field.name) == value
    assert options[0] == options[1]


def test_the_text_of_a_value_parses_to_the_value() -> None:
    assert failures(check_text_of_value, EVERY_OPTION) == {}


def check_invalid_value(option: tuple[Operation, OptionField]) -> None:
    declared, field = option
    with pytest.raises(ConfigError, match="OPTION_INVALID") as caught:
        read_options(declared.options_model(), required_values(declared) | {field.name: "many"})

    assert f"{field.flag} many" in caught.value.message
    assert field.help in caught.value.hint


def test_an_invalid_value_is_rejected_with_its_flag_and_help() -> None:
    typed = {name: option for name, option in EVERY_OPTION.items() if option[1].kind not in ("text", "names")}

    assert failures(check_invalid_value, typed) == {}


def test_unknown_choices_and_options_are_rejected() -> None:
    restore = OPERATIONS["restore"].options_model()

    with pytest.raises(ConfigError, match=r"OPTION_INVALID.*--repair sources"):
        read_options(restore, {"repair": "sources"})
    with pytest.raises(ConfigError, match=r"OPTION_INVALID.*to_batches"):
        read_options(restore, {"to_batches": 1})


@given(st.lists(NAMES, max_size=5))
def test_names_are_split_at_commas_and_not_within_braces(names: list[str]) -> None:
    assert split_names(", ".join(names)) == names
    assert split_names(names) == names


def test_patterns_with_braces_are_not_split() -> None:
    assert split_names("a,{b,c}/*.gz, d ,,") == ["a", "{b,c}/*.gz", "d"]
    assert split_names(["x/{1,{2,3}}", "y,z"]) == ["x/{1,{2,3}}", "y", "z"]


def test_a_model_describes_flags_and_form_fields() -> None:
    class Sample(Options):
        dry_run: bool = Field(True, description="Only count.")
        rows: int | None = Field(None, ge=1, le=9, description="So many.")
        mode: Literal["a", "b"] = Field("a", description="How.")

    fields = {field.name: field for field in option_fields(Sample)}

    assert list(fields) == ["rows", "mode", "dry_run"], "dry_run comes last"
    assert (fields["rows"].kind, fields["rows"].minimum, fields["rows"].maximum) == ("integer", 1, 9)
    assert (fields["mode"].choices, fields["mode"].default) == (("a", "b"), "a")
    assert (fields["dry_run"].flag, fields["dry_run"].off_flag) == ("--dry-run", "--no-dry-run")
