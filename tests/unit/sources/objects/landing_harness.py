"""Test files and a store that keeps landed objects in order."""

from __future__ import annotations

import io
from typing import Any

from deltaworks.sources.objects.land import LandedFile, land
from deltaworks.sources.objects.landed_inputs import find_inputs
from deltaworks.specs.sources import FileSourceSpec


class MemoryStore(dict[str, bytes]):
    """Objects by key."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object; False where there is one."""
        if key in self:
            return False
        self[key] = data
        return True


def source(**declared: Any) -> FileSourceSpec:
    """A source of objects below `shop/`."""
    return FileSourceSpec.model_validate(
        {"kind": "s3_sqs", "relay": "landing", "bucket": "landing", "prefix": "shop/"} | declared
    )


def landed(data: bytes, spec: FileSourceSpec, *, object_bytes: int) -> tuple[list[bytes], LandedFile]:
    """The objects that a file with these bytes becomes, as they are stored, and the result."""
    shelf = MemoryStore()
    inputs = find_inputs(["-"], standard_input=io.BytesIO(data))
    (result,) = land(inputs, spec, shelf, object_bytes=object_bytes)
    return list(shelf.values()), result
