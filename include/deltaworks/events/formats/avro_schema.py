"""Checks that an Avro schema bounds the memory of its records, before any record is read.

A reader nests as deeply, and creates as many values, as the bytes request. So these schemas are rejected: recursive
types, types nested beyond `MAX_LEVELS`, and records or items that take no bytes, of which a block may announce any
number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.reasons import ReasonCode

#: Maximum nesting. Converting to JSON is recursive, and Python's stack allows a few hundred levels.
MAX_LEVELS = 64
#: Maximum number of values in a record, not counting items of arrays and maps.
_MAX_RECORD_VALUES = 100_000
_PRIMITIVES: Mapping[str, int] = {
    "null": 0,
    "boolean": 1,
    "int": 1,
    "long": 1,
    "float": 4,
    "double": 8,
    "bytes": 1,
    "string": 1,
}


@dataclass(frozen=True, slots=True)
class TypeCost:
    """Cost of reading one value of a type.

    Attributes:
        min_bytes: minimum size in the container.
        values: number of values including nested ones, without items of arrays and maps.
        values_per_byte: maximum number of values per byte of array and map items; 0 without arrays and maps.
    """

    min_bytes: int
    values: int
    values_per_byte: int = 0


def schema_cost(schema: Any) -> TypeCost:
    """Returns the cost of reading a record of the schema.

    Raises:
        ConversionError: the schema is unbounded or invalid.
    """
    cost = _CostCalculator().type_cost(schema, "", 0)
    if cost.min_bytes == 0:
        raise _unbounded_schema_error("its records take no bytes")
    return cost


class _CostCalculator:
    def __init__(self) -> None:
        self._named_costs: dict[str, TypeCost | None] = {}

    def type_cost(self, schema: Any, namespace: str, level: int) -> TypeCost:
        if level > MAX_LEVELS:
            raise _unbounded_schema_error(f"its types are nested more than {MAX_LEVELS} deep")
        if isinstance(schema, list):
            return self._union_cost([self.type_cost(branch, namespace, level + 1) for branch in schema])
        if isinstance(schema, str):
            return self._named_cost(schema, namespace)
        if not isinstance(schema, dict) or "type" not in schema:
            raise _unbounded_schema_error("one of its types is invalid")
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._declared_cost(kind, schema, namespace, level)
        if kind in ("array", "map"):
            inner = self.type_cost(schema.get("items" if kind == "array" else "values"), namespace, level + 1)
            return _repeated_cost(inner, key_bytes=int(kind == "map"))
        return self.type_cost(kind, namespace, level + 1)

    def _named_cost(self, name: str, namespace: str) -> TypeCost:
        if name in _PRIMITIVES:
            return TypeCost(_PRIMITIVES[name], 1)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        full = full if full in self._named_costs else name
        if full not in self._named_costs:
            raise _unbounded_schema_error(f"it has no type {name[:80]!r}")
        cost = self._named_costs[full]
        if cost is None:
            raise _unbounded_schema_error(f"the type {name[:80]!r} is recursive")
        return cost

    def _declared_cost(self, kind: str, schema: Mapping[str, Any], namespace: str, level: int) -> TypeCost:
        name = str(schema.get("name", ""))
        namespace = name.rpartition(".")[0] or str(schema.get("namespace", namespace))
        name = name if "." in name or not namespace else f"{namespace}.{name}"
        self._named_costs[name] = None
        if kind == "enum":
            cost = TypeCost(1, 1)
        elif kind == "fixed":
            cost = TypeCost(int(schema.get("size", 0)), 1)
        else:
            fields = [self.type_cost(field["type"], namespace, level + 1) for field in schema["fields"]]
            cost = TypeCost(
                sum(field.min_bytes for field in fields),
                1 + sum(field.values for field in fields),
                max((field.values_per_byte for field in fields), default=0),
            )
        if cost.values > _MAX_RECORD_VALUES:
            raise _unbounded_schema_error(f"a record has more than {_MAX_RECORD_VALUES} values")
        self._named_costs[name] = cost
        return cost

    @staticmethod
    def _union_cost(branches: list[TypeCost]) -> TypeCost:
        return TypeCost(
            1 + min((branch.min_bytes for branch in branches), default=0),
            max((branch.values for branch in branches), default=1),
            max((branch.values_per_byte for branch in branches), default=0),
        )


def _repeated_cost(inner: TypeCost, *, key_bytes: int) -> TypeCost:
    min_bytes = inner.min_bytes + key_bytes
    if min_bytes == 0:
        raise _unbounded_schema_error("items of an array take no bytes")
    return TypeCost(1, 1, max(inner.values_per_byte, -(-inner.values // min_bytes)))


def _unbounded_schema_error(why: str) -> ConversionError:
    return ConversionError(ReasonCode.OBJECT_UNREADABLE, f"its Avro schema is unbounded: {why}")
