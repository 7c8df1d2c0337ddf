"""What an edit of a pipeline's declaration does to a stream that has been running, field by field.

Pure comparison of two specs. Tables, columns and the like are told apart by name, so their order means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deltaworks.specs.base import Spec
from deltaworks.specs.effects import OTHER_LOG, OTHER_MEANING, RULES, Each, Effect, Into, Leaf
from deltaworks.specs.pipeline import PipelineSpec, TableSpec


@dataclass(frozen=True, slots=True)
class SpecChange:
    """One field that differs. `old` or `new` is None where the thing is absent; `advice` says what to do."""

    field: str
    old: Any
    new: Any
    effect: Effect
    advice: str


def classify(old: PipelineSpec, new: PipelineSpec) -> list[SpecChange]:
    """Every field that differs with its effect, in the order of the declaration; empty where nothing does."""
    return list(_compared(old, new, "", {"pipeline": old.pipeline, "table": ""}))


def unsafe(changes: list[SpecChange]) -> list[SpecChange]:
    """Those a stream does not start on unasked."""
    return [change for change in changes if change.effect.unsafe]


def _compared(old: Spec, new: Spec, above: str, words: Mapping[str, str]) -> Iterator[SpecChange]:
    rules = RULES[type(new)]
    for name in type(new).model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        field = f"{above}{name}"
        # A field nobody has thought about is not taken to be harmless.
        rule = rules.get(name, OTHER_MEANING)
        if isinstance(rule, Into) and rule.absent is not None and (before is None or after is None):
            yield _change(rule.absent, field, before, after, words)
        elif isinstance(rule, Into) and type(before) is not type(after):
            yield _change(OTHER_LOG, f"{field}.kind", before.kind, after.kind, words)
        elif isinstance(rule, Into):
            yield from _compared(before, after, f"{field}.", words)
        elif isinstance(rule, Each):
            yield from _named(rule, before, after, field, words)
        else:
            yield _change(rule, field, before, after, words)


def _named(
    rule: Each, old: tuple[Any, ...], new: tuple[Any, ...], field: str, words: Mapping[str, str]
) -> Iterator[SpecChange]:
    before, after = ({each.name: each for each in things} for things in (old, new))
    for name in [*after, *(name for name in before if name not in after)]:
        named = f"{field}.{name}"
        own = {**words, "name": name, "table": name if rule.model is TableSpec else words["table"]}
        if name not in before:
            yield _change(rule.added, named, None, after[name], own)
        elif name not in after:
            yield _change(rule.removed, named, before[name], None, own)
        else:
            yield from _compared(before[name], after[name], f"{named}.", own)


def _change(leaf: Leaf, field: str, old: Any, new: Any, words: Mapping[str, str]) -> SpecChange:
    return SpecChange(field, _plain(old), _plain(new), leaf.effect, leaf.advice.format_map({"name": "", **words}))


def _plain(value: Any) -> Any:
    """A value as data, as it is printed and recorded."""
    if isinstance(value, Spec):
        return value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value
