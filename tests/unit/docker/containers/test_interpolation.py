"""Variables of a Compose file are put in by the rules of its specification, which are Bash's for these forms."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.integration.containers.interpolation import ComposeFileError, interpolate, interpolate_tree

VARIABLES = {"SET": "value", "EMPTY": "", "OTHER": "other", "_x1": "underscore"}
NAMES = st.sampled_from(["SET", "EMPTY", "UNSET", "OTHER", "_x1"])
LITERALS = st.text(alphabet="abc .:/-_=,?+1", max_size=6)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain", "plain"),
        ("$SET", "value"),
        ("${SET}", "value"),
        ("$SET/x", "value/x"),
        ("$UNSET", ""),
        ("${UNSET}", ""),
        ("${UNSET:-default}", "default"),
        ("${EMPTY:-default}", "default"),
        ("${EMPTY-default}", ""),
        ("${UNSET-default}", "default"),
        ("${SET:?error}", "value"),
        ("${EMPTY?error}", ""),
        ("${SET:+replacement}", "replacement"),
        ("${EMPTY:+replacement}", ""),
        ("${EMPTY+replacement}", "replacement"),
        ("${UNSET+replacement}", ""),
        ("${UNSET:-${OTHER}}", "other"),
        ("${UNSET:-${EMPTY:-deep}}", "deep"),
        ("${UNSET:-$OTHER}", "other"),
        ("${UNSET:-}", ""),
        ("${UNSET:-a:b/c-d}:7077", "a:b/c-d:7077"),
        ("$$SET", "$SET"),
        ("$${SET}", "${SET}"),
        ("$$(( $$(date) ))", "$(( $(date) ))"),
        ("$$$SET", "$value"),
        ("5 $ and $1", "5 $ and $1"),
        ("${UNSET:-$$x}", "$x"),
    ],
)
def test_a_form_of_the_specification_gives_what_it_says(text: str, result: str) -> None:
    assert interpolate(text, VARIABLES) == result


@pytest.mark.parametrize("text", ["${UNSET:?say who}", "${EMPTY:?say who}", "${UNSET?say who}"])
def test_a_required_variable_that_is_missing_ends_it_with_its_message(text: str) -> None:
    with pytest.raises(ComposeFileError, match=r"required variable .* is missing a value: say who"):
        interpolate(text, VARIABLES)


@pytest.mark.parametrize("text", ["${SET", "${UNSET:-${OTHER}", "${}", "${1x}", "${SET/a/b}", "${SET:0:1}"])
def test_what_compose_has_no_form_for_is_refused(text: str) -> None:
    with pytest.raises(ComposeFileError):
        interpolate(text, VARIABLES)


def test_only_values_have_variables_and_what_is_no_text_stays() -> None:
    tree = {"$SET": ["$SET", 3, True, None, {"a": "${UNSET:-b}"}]}

    assert interpolate_tree(tree, VARIABLES) == {"$SET": ["value", 3, True, None, {"a": "b"}]}


def forms(word: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    braced = st.builds(
        lambda name, sign, inner: f"${{{name}{sign}{inner}}}", NAMES, st.sampled_from([":-", "-", ":+", "+"]), word
    )
    return st.lists(st.one_of(LITERALS, braced, NAMES.map("${{{}}}".format), st.just("$$")), max_size=4).map("".join)


@settings(max_examples=examples(10), deadline=None)
@given(st.lists(st.recursive(LITERALS, forms, max_leaves=6), min_size=20, max_size=20))
def test_bash_puts_the_same_in(texts: list[str]) -> None:
    script = "\n".join(f'printf "%s\\0" "{text.replace("$$", chr(92) + "$")}"' for text in texts)

    printed = subprocess.run(["bash", "-c", script], env=VARIABLES, capture_output=True, text=True, check=True).stdout

    assert [interpolate(text, VARIABLES) for text in texts] == printed.split("\0")[:-1]
