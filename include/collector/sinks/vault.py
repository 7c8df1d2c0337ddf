"""The vault as a sink: sealed frames of the spool become sealed files, named by the numbers they span."""

from __future__ import annotations

import gzip
from typing import Protocol

from collector.packing import PackedObject
from collector.redaction import encode_vault_file
from deltaworks.privacy import paths


class VaultObjects(Protocol):
    """What of an object store the sink needs."""

    def put(self, key: str, data: bytes) -> None:
        """Write or replace the object."""


class VaultSink:
    """Puts sealed files of one collector. One that is put again, after a crash, has the same name and holds the same.

    Args:
        collector: the id of the spool's folder.
    """

    def __init__(self, objects: VaultObjects, collector: str) -> None:
        self._objects = objects
        self._collector = collector

    def put(self, item: PackedObject) -> None:
        """Put one: its lines are payloads of sealed frames.

        Raises:
            TransientError: the vault does not answer.
        """
        plan = item.plan
        lines = gzip.decompress(item.body).splitlines()
        numbered = [(plan.first + place, line) for place, line in enumerate(lines)]
        self._objects.put(
            paths.sealed_by_collector(self._collector, plan.first, plan.last), encode_vault_file(numbered)
        )
