"""Finds all errors of a pipeline in one run: replaces invalid parts by placeholders and validates the rest again.

Errors that only follow from a replaced part are suppressed: a reader of an invalid table needs no error of its own.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from deltaworks.specs.base import NAME_PATTERN, KeyPath
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.source_positions import value_at
from deltaworks.specs.spec_errors import SpecError
from deltaworks.specs.validation_errors import Declaration, to_spec_errors

#: Placeholders for required sections.
_PLACEHOLDERS: dict[str, Any] = {
    "description": "",
    "owner": "placeholder",
    "source": {"kind": "delta", "uri": "s3://placeholder/table"},
    "event": {"name": {"constant": "event"}, "time": {"path": "time"}},
    "tables": [{"name": "placeholder", "catch_all": True}],
}
#: A placeholder's name in a list of known names.
_PLACEHOLDER_NAME = re.compile(r"\bplaceholder(?:_\w+)?(?:, |$)")
_MAX_PASSES = 20

CrossCheck = Callable[[PipelineSpec, Declaration], Iterable[tuple[KeyPath, SpecError]]]


@dataclass(slots=True)
class ValidationResult:
    """The errors of a declaration, and the spec of its valid parts.

    Key paths in `replaced` were replaced by placeholders. The `spec` contains the placeholders; it is None if nothing
    could be validated.
    """

    declaration: Declaration
    spec: PipelineSpec | None = None
    errors: list[SpecError] = field(default_factory=list)
    replaced: set[KeyPath] = field(default_factory=set)
    replaced_names: set[str] = field(default_factory=set)

    def is_replaced(self, key_path: KeyPath) -> bool:
        """Returns whether a key path lies in a part that was replaced by a placeholder."""
        return any(key_path[: len(prefix)] == prefix for prefix in self.replaced)

    def is_consequence(self, key_path: KeyPath, text: str) -> bool:
        """Returns whether an error may only follow from a replaced part."""
        message = re.split("; (?:did you mean|known names)", text)[0]
        is_named = any(f"'{name}'" in message or f"`{name}`" in message for name in self.replaced_names)
        sections = [str(prefix[0]) for prefix in self.replaced if len(prefix) == 1]
        is_named = is_named or any(re.search(rf"\b{section}\b", message) for section in sections)
        depends_on_tables = key_path[:1] == ("mutations",) and any(prefix[0] == "tables" for prefix in self.replaced)
        return self.is_replaced(key_path) or is_named or depends_on_tables


def validate_pipeline(declaration: Declaration, cross_check: CrossCheck) -> ValidationResult:
    """Validates a pipeline and collects all errors.

    Args:
        cross_check: further checks of a valid spec.
    """
    result = ValidationResult(replace(declaration, data=copy.deepcopy(declaration.data)))
    data = result.declaration.data
    for _ in range(_MAX_PASSES):
        try:
            result.spec = PipelineSpec.model_validate(data)
            problems = list(cross_check(result.spec, result.declaration))
        except ValidationError as error:
            problems = to_spec_errors(error, result.declaration, PipelineSpec)
        # The parts that were replaced before this pass.
        new_errors = [
            (key_path, spec_error)
            for key_path, spec_error in problems
            if not result.is_consequence(key_path, spec_error.text)
        ]
        result.errors += [
            replace(spec_error, text=_PLACEHOLDER_NAME.sub("", spec_error.text)) for _, spec_error in new_errors
        ]
        if result.spec is not None:
            break
        before = set(result.replaced)
        for key_path, _ in problems:
            # A part that is still invalid after its replacement requires replacing a larger part.
            if not result.is_replaced(key_path) or any(key_path[: len(prefix)] == prefix for prefix in before):
                _replace_invalid(result, key_path, data)
        if result.replaced == before:
            break
    return result


def _replace_invalid(result: ValidationResult, key_path: KeyPath, data: dict[str, Any]) -> None:
    """Replaces the smallest enclosing node of a key path for which a valid placeholder exists and that is not replaced
    yet.
    """
    for prefix, replacement in _replacement_candidates(key_path, data):
        if prefix in result.replaced:
            continue
        result.replaced.add(prefix)
        result.replaced_names |= _declared_names(prefix, data)
        _replace(data, prefix, replacement)
        if "columns" in prefix:
            # These keys cannot be checked against columns of unknown type.
            for key in ("rules", "mutable"):
                result.replaced.add((*prefix[:2], key))
                _replace(data, (*prefix[:2], key), _REMOVE)
        return


_REMOVE = object()
#: Optional keys of tables by kind. An invalid one is removed.
_OPTIONAL = {
    "tables": ("partition_by", "zorder_by", "cluster_by", "writer", "evolve", "rules", "duplicates", "description"),
    "live": ("window_minutes", "watermark_minutes", "group_by", "sum", "distinct", "keep", "trigger_seconds"),
    "gold": ("affects", "checks", "description"),
}


def _replacement_candidates(key_path: KeyPath, data: dict[str, Any]) -> Iterator[tuple[KeyPath, Any]]:
    """Yields the parts around a key path that can be replaced, each with its placeholder, smallest first."""
    head = str(key_path[0]) if key_path else ""
    item = _table_key_path(key_path)
    if item is not None and value_at(item, data) is not None:
        relative_path = key_path[len(item) :]
        if relative_path and relative_path[0] in _OPTIONAL[head]:
            yield (*item, relative_path[0]), _REMOVE
        column = (
            value_at((*item, *relative_path[:2]), data)
            if relative_path[:1] == ("columns",) and len(relative_path) > 2
            else None
        )
        if isinstance(column, dict) and relative_path[2] != "name" and _is_name(column.get("name")):
            yield (*item, *relative_path[:2]), {"name": column["name"], "path": "placeholder", "type": "string"}
        yield item, _placeholder_table(item, data)
    if head == "sources" and len(key_path) > 1:
        yield key_path[:2], copy.deepcopy(_PLACEHOLDERS["source"])
    if head == "pipeline":
        yield ("pipeline",), "placeholder"
    elif head in _PLACEHOLDERS:
        yield (head,), copy.deepcopy(_PLACEHOLDERS[head])
    else:
        yield from (((*key_path[:length],), _REMOVE) for length in (2, 1) if len(key_path) >= length)


def _table_key_path(key_path: KeyPath) -> KeyPath | None:
    """Returns the key path of the table that contains a key path; None outside tables."""
    length = 3 if key_path[:2] == ("gold", "tables") else 2
    is_item = key_path[:1] in (("tables",), ("live",)) or length == 3
    return key_path[:length] if is_item and len(key_path) >= length else None


def _placeholder_table(item: KeyPath, data: dict[str, Any]) -> dict[str, Any]:
    """Returns a placeholder for a table. It keeps a valid name, so that readers of the table stay valid."""
    items, index = value_at(item[:-1], data), item[-1]
    declaration = items[index] if isinstance(items[index], dict) else {}
    used_names = [other.get("name") for other in items if isinstance(other, dict) and other is not declaration]
    name = declaration.get("name")
    if not _is_name(name) or name in used_names or name == "quarantine":
        name = f"placeholder_{item[0]}_{index}"
    first = value_at(("tables", 0, "name"), data)
    first = first if _is_name(first) else "placeholder"
    return {
        "tables": {"name": name, "catch_all": True},
        "live": {"name": name, "reads": first},
        "gold": {
            "name": name,
            "sql": "placeholder.sql",
            "reads": [first],
            "partition_by": "event_date",
            "affects": "all",
        },
    }[str(item[0])]


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and NAME_PATTERN.match(name) is not None


def _declared_names(key_path: KeyPath, data: dict[str, Any]) -> set[str]:
    """Returns the names that a table, or a list of tables, declares and other parts can refer to."""
    node = value_at(_table_key_path(key_path) or key_path, data)
    items = node if isinstance(node, list) else [node]
    return {item["name"] for item in items if isinstance(item, dict) and isinstance(item.get("name"), str)}


def _replace(data: dict[str, Any], key_path: KeyPath, replacement: Any) -> None:
    node: Any = value_at(key_path[:-1], data)
    if isinstance(node, dict) and replacement is not _REMOVE:
        node[key_path[-1]] = replacement
    elif isinstance(node, dict):
        node.pop(key_path[-1], None)
    elif isinstance(node, list) and isinstance(key_path[-1], int) and key_path[-1] < len(node):
        # List items are never removed, because the key paths of later items would shift.
        node[key_path[-1]] = replacement
