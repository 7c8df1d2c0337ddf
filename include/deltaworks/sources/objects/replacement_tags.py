"""Looks up under which tag an announced object lies that was put anew without erased events; from a task, too.

A task that meets another tag than was announced asks here. What is put is on record before it is put, so whoever finds
it in its place finds the record.
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
    """The replacements of a bucket's objects. Carries the values of references, which a remote worker lacks."""

    def __init__(self, lake: StorageSpec, bucket: str) -> None:
        self._lake = lake.model_dump_json()
        self._bucket = bucket
        self._variables = resolved_variables(lake)

    def tags_for(self, key: str, etag: str) -> list[str]:
        """The tags that the object of this tag may have now, the newest first.

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
    """One for each process and lake: what was read is not read again."""
    return Replacements(open_objects(StorageSpec.model_validate_json(lake)))
