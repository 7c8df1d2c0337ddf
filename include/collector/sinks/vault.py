"""The vault as a sink: sealed frames of the spool become sealed files, named by their event numbers."""

from __future__ import annotations

import gzip
from typing import Protocol

from collector.packing import PackedObject
from collector.redaction import encode_vault_file
from deltaworks.privacy import paths


class VaultObjects(Protocol):
    """The object store methods that the sink needs."""

    def put(self, key: str, data: bytes) -> None:
        """Creates or replaces the object."""


class VaultSink:
    """Puts sealed files of one collector. A repeated put after a crash has the same name and content.

    Args:
        collector: the id of the spool folder.
    """

    def __init__(self, objects: VaultObjects, collector: str) -> None:
        self._objects = objects
        self._collector = collector

    def put(self, item: PackedObject) -> None:
        """Puts one sealed file; its lines are payloads of sealed frames.

        Raises:
            TransientError: the vault does not answer.
        """
        plan = item.plan
        lines = gzip.decompress(item.body).splitlines()
        numbered = [(plan.first + place, line) for place, line in enumerate(lines)]
        self._objects.put(
            paths.collector_sealed_path(self._collector, plan.first, plan.last), encode_vault_file(numbered)
        )
