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
    from_argument,
    name_fields,
    option_fields,
    read_options,
    split_names,
    to_arguments,
)
from deltaworks.operations.registry import OPERATIONS, get_operation
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
    return read_options(declared.options_model(), from_argument(words["options"]))


def required_values(declared: Operation) -> dict[str, Any]:
    return required_options(declared.options_model(), "orders")


@settings(max_examples=examples(100, slow=True))
@given(data=st.data())
def check_round_trip(declared: Operation, data: st.DataObject) -> None:
    options = data.draw(options_of(declared))

    assert parsed(declared, to_arguments(options)) == options


def test_options_survive_a_round_trip_through_job_arguments() -> None:
    assert failures(check_round_trip, OPERATIONS) == {}


#: Texts that argument parsers, launchers or shells read as syntax, and those that look like another value.
SYNTAX = st.sampled_from(
    [
        *("--", "-", "--options", "--pipeline=other", "--no-dry-run", "-h", "@file", "=", "a=b", "a b", "%"),
        *("'", '"', "\\", "$(x)", "`x`", "{{PWD}}", "}}", "{", "\n", "\u2028", "\x00", "é", "\ud800", "*"),
        *("None", "null", "true", "[]", "{}"),
    ]
)
TEXTS = {
    f"{declared.name}-{field.name}": (declared, field)
    for declared, field in EVERY_OPTION.values()
    if field.kind in ("text", "names") and not field.choices
}


@settings(max_examples=examples(50))
@given(text=st.lists(SYNTAX, min_size=1, max_size=3).map("".join))
def check_text_is_data(option: tuple[Operation, OptionField], text: str) -> None:
    declared, field = option
    value = (text,) if field.kind == "names" else text
    try:
        options = read_options(declared.options_model(), required_values(declared) | {field.name: value})
    except ConfigError:
        return

    arguments = to_arguments(options)

    assert parsed(declared, arguments) == options
    assert len(arguments) <= 1
    assert all(word.isascii() and word.isprintable() for word in arguments)
    assert all(braces not in word for word in arguments for braces in ("{{", "}}"))
    if field.kind == "names":
        assert getattr(options, field.name), "a name does not become the default, which selects everything"


def test_a_text_never_becomes_syntax_of_the_job() -> None:
    assert failures(check_text_is_data, TEXTS) == {}


@pytest.mark.parametrize("names", [",", " ", ", ,", [" "], [""], ["", ","], (",",)])
def test_a_list_of_no_names_does_not_select_everything(names: Any) -> None:
    replay = OPERATIONS["replay_quarantine"]

    with pytest.raises(ConfigError, match=r"OPTION_INVALID.*names nothing"):
        read_options(replay.options_model(), {"event": names})


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"dry_run"', "--no-dry-run"])
def test_only_an_object_is_options(text: str) -> None:
    with pytest.raises(ConfigError, match="OPTION_INVALID"):
        from_argument(text)


@pytest.mark.parametrize(
    "words", [["--event=--"], ["--no-dry-run"], ["--"], ["--", "--options={}"], ["--opt={}"], ["x"]]
)
def test_a_job_has_no_other_arguments(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser(OPERATIONS["replay_quarantine"]).parse_args(["--pipeline", "shop", *words])


def check_default_arguments(declared: Operation) -> None:
    required = required_values(declared)

    arguments = to_arguments(read_options(declared.options_model(), required))

    assert [from_argument(word.removeprefix("--options=")) for word in arguments] == ([required] if required else [])


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


RESTORE_FIELDS = option_fields(get_operation("restore").options_model())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Nothing was changed. Use --no-dry-run to apply it.", "Nothing was changed. Use Dry run off to apply it."),
        (
            "Nothing was changed. To apply it add: --max-rows 59 --no-dry-run",
            "Nothing was changed. To apply it add: Max rows 59 Dry run off",
        ),
        ("without files: 3; --repair source reads them", "without files: 3; Repair source reads them"),
        ("Run `deltaworks restore games --to-batch 3`.", "Run `deltaworks restore games --to-batch 3`."),
        ("Continue: deltaworks restore games --no-dry-run", "Continue: deltaworks restore games --no-dry-run"),
        (
            "--other 3 is not one of its options, and a--b is none",
            "--other 3 is not one of its options, and a--b is none",
        ),
    ],
)
def test_flags_become_the_fields_of_a_form(text: str, shown: str) -> None:
    assert name_fields(text, RESTORE_FIELDS) == shown
