"""Finds the current ETag of an announced object that an erasure rewrote without the erased events.

Called in tasks, if the ETag differs from the announced one. An erasure records the replacement before it rewrites the
object, so the record always exists.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import Final

from deltaworks.control.objects import open_objects
from deltaworks.control.records.replacements import Replacements
from deltaworks.specs.storage import StorageSpec, resolved_variables, set_missing_variables

_LOCK: Final = threading.Lock()


class ReplacementTags:
    """Looks up replaced objects of one bucket. Contains resolved secrets, because remote workers lack the variables."""

    def __init__(self, lake: StorageSpec, bucket: str) -> None:
        self._lake = lake.model_dump_json()
        self._bucket = bucket
        self._variables = resolved_variables(lake)

    def tags_for(self, key: str, etag: str) -> list[str]:
        """Returns the ETags that a rewritten object may have now, the latest first.

        Raises:
            ContractError: ERASURE_UNREADABLE.
            TransientError: the lake does not answer.
        """
        if not etag:
            return []
        set_missing_variables(self._variables)
        with _LOCK:
            return _replacements(self._lake, os.getpid()).refresh().successors(self._bucket, key, etag)


@functools.lru_cache(maxsize=4)
def _replacements(lake: str, _process: int) -> Replacements:
    """Returns the instance of this process for a lake. Cached."""
    return Replacements(open_objects(StorageSpec.model_validate_json(lake)))
