"""What a schema of Avro lets a few bytes become, judged before a record is read.

The reader follows a schema into whatever depth the bytes say, and makes as many values as they say. So a schema is
refused where that has no end in its own terms: a type inside itself, types nested beyond `MOST_LEVELS`, and items or
records that take no bytes, of which a block may announce any number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.reasons import ReasonCode

#: Levels of a value. Python's stack holds some hundred of them on the way to JSON.
MOST_LEVELS = 64
#: Values that a record has however it is filled; that many columns are no table.
_MOST_VALUES = 100_000
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
class Cost:
    """What a value of a type comes to.

    Attributes:
        least_bytes: in the container, at least.
        values: with all inside it, items of arrays and maps excepted.
        values_per_byte: of items, at most; 0 where there are none.
    """

    least_bytes: int
    values: int
    values_per_byte: int = 0


def cost_of(schema: Any) -> Cost:
    """What a record of the schema comes to.

    Raises:
        Misfit: it has no bound, or is no schema.
    """
    cost = _Judge().cost(schema, "", 0)
    if cost.least_bytes == 0:
        raise _refused("its records take no bytes")
    return cost


class _Judge:
    def __init__(self) -> None:
        self._named: dict[str, Cost | None] = {}

    def cost(self, schema: Any, namespace: str, level: int) -> Cost:
        if level > MOST_LEVELS:
            raise _refused(f"its types are nested more than {MOST_LEVELS} deep")
        if isinstance(schema, list):
            return self._union([self.cost(branch, namespace, level + 1) for branch in schema])
        if isinstance(schema, str):
            return self._by_name(schema, namespace)
        if not isinstance(schema, dict) or "type" not in schema:
            raise _refused("a type of it is none")
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._declared(kind, schema, namespace, level)
        if kind in ("array", "map"):
            inner = self.cost(schema.get("items" if kind == "array" else "values"), namespace, level + 1)
            return _repeated(inner, key_bytes=int(kind == "map"))
        return self.cost(kind, namespace, level + 1)

    def _by_name(self, name: str, namespace: str) -> Cost:
        if name in _PRIMITIVES:
            return Cost(_PRIMITIVES[name], 1)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        full = full if full in self._named else name
        if full not in self._named:
            raise _refused(f"it has no type {name[:80]!r}")
        cost = self._named[full]
        if cost is None:
            raise _refused(f"the type {name[:80]!r} has itself inside")
        return cost

    def _declared(self, kind: str, schema: Mapping[str, Any], namespace: str, level: int) -> Cost:
        name = str(schema.get("name", ""))
        namespace = name.rpartition(".")[0] or str(schema.get("namespace", namespace))
        name = name if "." in name or not namespace else f"{namespace}.{name}"
        self._named[name] = None
        if kind == "enum":
            cost = Cost(1, 1)
        elif kind == "fixed":
            cost = Cost(int(schema.get("size", 0)), 1)
        else:
            fields = [self.cost(field["type"], namespace, level + 1) for field in schema["fields"]]
            cost = Cost(
                sum(field.least_bytes for field in fields),
                1 + sum(field.values for field in fields),
                max((field.values_per_byte for field in fields), default=0),
            )
        if cost.values > _MOST_VALUES:
            raise _refused(f"a record has more than {_MOST_VALUES} values")
        self._named[name] = cost
        return cost

    @staticmethod
    def _union(branches: list[Cost]) -> Cost:
        return Cost(
            1 + min((branch.least_bytes for branch in branches), default=0),
            max((branch.values for branch in branches), default=1),
            max((branch.values_per_byte for branch in branches), default=0),
        )


def _repeated(inner: Cost, *, key_bytes: int) -> Cost:
    least = inner.least_bytes + key_bytes
    if least == 0:
        raise _refused("items of an array take no bytes")
    return Cost(1, 1, max(inner.values_per_byte, -(-inner.values // least)))


def _refused(why: str) -> ConversionError:
    return ConversionError(ReasonCode.OBJECT_UNREADABLE, f"its Avro schema has no bound: {why}")
