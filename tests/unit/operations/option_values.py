"""Hypothesis strategies for the options of operations."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from deltaworks.operations.base import Operation
from deltaworks.operations.options import OptionField, Options, option_fields, read_options

#: Names as tables and keys are written: a comma only within braces, no blank at either end. Not `--`, which argparse
#: drops as the end of the options even after an equals sign.
NAMES = st.from_regex(r"[a-z0-9*/._-]{1,8}(\{[a-z]{1,3},[a-z]{1,3}\})?", fullmatch=True).filter(
    lambda name: name != "--"
)
#: An empty text, and one that a template makes of None, mean the default.
TEXTS = st.text(min_size=1).filter(lambda text: text not in ("None", "--"))


def values(field: OptionField) -> st.SearchStrategy[Any]:
    """Values that an option accepts."""
    if field.choices:
        return st.sampled_from(field.choices)
    if field.kind == "switch":
        return st.booleans()
    if field.kind == "names":
        return st.lists(NAMES, max_size=4).map(tuple)
    lowest, highest = field.minimum, field.maximum
    if field.kind == "integer":
        return st.integers(None if lowest is None else int(lowest), None if highest is None else int(highest))
    if field.kind == "number":
        # Above a bound that is itself excluded.
        return st.floats(0.001 if lowest is None else lowest, highest, allow_nan=False, allow_infinity=False)
    return TEXTS


def required_options(model: type[Options], name: str) -> dict[str, Any]:
    """Values of the required options: `name`, or the first choice."""
    return {field.name: field.choices[0] if field.choices else name for field in option_fields(model) if field.required}


@st.composite
def options_of(draw: st.DrawFn, declared: Operation) -> Options:
    """Options of an operation, some of them with their defaults."""
    given = {}
    for field in option_fields(declared.options_model()):
        if field.required or draw(st.booleans()):
            given[field.name] = draw(values(field))
    return read_options(declared.options_model(), given)
