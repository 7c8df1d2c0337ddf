"""YAML that is invalid, too deep or too large is rejected quickly, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.errors import ConfigError
from deltaworks.specs.bounded_yaml import MAX_DEPTH, load_yaml
from deltaworks.specs.loading import read_yaml
from deltaworks.specs.overrides import overrides_from_variables
from deltaworks.specs.yaml_errors import InvalidYamlError

BOMB = "a0: &a0 [x, x]\n" + "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))
#: Text and the line that is wrong in it.
WRONG = {
    "keys that are mappings": ("a: 1\n" + "? " * 60, 2),
    "a key that is a list": ("a: 1\n? [b]\n: c", 2),
    "a key that is its own mapping": ("&a {? *a : 1}", 1),
    "lists in lists": ("a: 1\nb: " + "[" * 3_000, 2),
    "mappings in mappings": ("a: 1\nb: " + "{a: " * 3_000, 2),
    "lists on one line": ("- " * 3_000, 1),
    "aliases that make billions of values": (BOMB, 1),
    "no UTF-8": (b"a: 1\nb: \xff", 2),
    "a character that no text has": ("a: 1\nb: \x7f", 2),
    "a date that is none": ("a: 2001-99-99", 1),
    "a number of thousands of digits": (f"a: {'9' * 5_000}", 1),
    "another type than the tag says": ("a: !!int x", 1),
    "two documents": ("a\n--- b", 2),
}


@pytest.mark.parametrize(("text", "line"), WRONG.values(), ids=WRONG)
def test_unreadable_files_are_rejected_with_file_and_line(text: str | bytes, line: int, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)

    with pytest.raises(ConfigError, match=f"{path.name}:{line}: ") as rejection:
        read_yaml(path)

    assert rejection.value.condition == "SPEC_NOT_YAML"
    assert len(rejection.value.message) < 600


def test_a_recursive_value_is_rejected() -> None:
    with pytest.raises(InvalidYamlError, match="exceeds 100 levels"):
        load_yaml(b"a: &a [*a]")


def test_the_maximum_nesting_is_read() -> None:
    depth = MAX_DEPTH - 1

    document = load_yaml(b"[" * depth + b"]" * depth)

    for _ in range(depth - 1):
        (document,) = document
    assert document == []


def test_aliases_of_few_values_are_read() -> None:
    assert load_yaml(b"a: &a {x: 1}\nb: {<<: *a, y: 2}") == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}


@pytest.mark.parametrize("text", ["? " * 60, "&a [*a]", "[" * 3_000, "2001-99-99", "\x7f"])
def test_variables_are_validated_like_files(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAWORKS_SET__pipelines__shop__owner", text)

    with pytest.raises(ConfigError, match="DELTAWORKS_SET__pipelines__shop__owner") as rejection:
        overrides_from_variables("pipelines", "shop")

    assert rejection.value.condition == "OVERRIDE_INVALID"


def outcome(data: bytes) -> tuple[str, int]:
    """What a text says, or what is wrong with it; with the line of that, 0 where nothing is."""
    try:
        return repr(load_yaml(data, kind="rt")), 0
    except InvalidYamlError as rejection:
        return rejection.problem, rejection.line


@given(st.binary(max_size=40) | st.text("ab:-[]{}?*&!|>'\"#\n\t ,~<1.", max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    (messages, line) = outcome(data)

    assert messages
    assert 0 <= line <= 1 + len(data)
