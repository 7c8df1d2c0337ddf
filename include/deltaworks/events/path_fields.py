"""What the parts of an object's key say of its events: `day=2026-01-31/` is the field `day` below `_partition`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import unquote

PARTITION_FIELD = "_partition"
#: What Hive writes for null.
_NULL = "__HIVE_DEFAULT_PARTITION__"


@lru_cache(maxsize=256)
def partition_fields(key: str, names: tuple[str, ...]) -> Mapping[str, str]:
    """The fields called `names` in a key, as texts; those it does not say, or says to be null, are left out."""
    parts = dict(part.split("=", 1) for part in key.split("/")[:-1] if "=" in part)
    return {name: unquote(parts[name]) for name in names if parts.get(name, _NULL) not in (_NULL, "")}
