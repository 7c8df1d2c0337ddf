"""Payloads of file events: which objects a batch reads, and how a task opens each of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from deltaworks.errors import DeltaworksError
from deltaworks.sources.file_events.fetch import open_object
from deltaworks.specs.source import Compression
from deltaworks.specs.storage import AwsSpec, StorageSpec
from deltaworks.streaming.batches import SourceSlice
from deltaworks.streaming.parsing.parse import Payload
from deltaworks.streaming.parsing.reasons import Reason, ReasonCode

#: Conditions of a fetch that belong to the object and not to the storage: they quarantine it, and the stream goes on.
_OF_THE_OBJECT = {code.value.upper(): code for code in ReasonCode if code.value.startswith("object_")} | {
    "OBJECT_TOO_LARGE": ReasonCode.TOO_LARGE
}


@dataclass(frozen=True, slots=True)
class FileReference:
    """One object of a batch."""

    seq: int
    key: str
    etag: str


def source_slice(events: pa.Table) -> SourceSlice:
    """The file events of a batch as references, largest facts beside them for the ledger."""
    rows = events.sort_by("seq").to_pylist()
    references = [FileReference(row["seq"], row["key"], row["etag"]) for row in rows]
    sizes = [max(1, row["size"] or 1) for row in rows]
    metadata: dict[str, Any] = {"files": len(rows), "bytes": sum(sizes)}
    if rows:
        metadata |= {
            "first_seq": rows[0]["seq"],
            "last_seq": rows[-1]["seq"],
            "oldest_event_time": min(row["event_time"] for row in rows).isoformat(),
            "newest_event_time": max(row["event_time"] for row in rows).isoformat(),
        }
    return SourceSlice(references, sizes, metadata)


class FileOpener:
    """Opens an object inside a task. Carries the values of the storage's references, which a remote worker lacks."""

    def __init__(self, storage: StorageSpec, *, compression: Compression, max_object_bytes: int | None = None) -> None:
        self._storage = storage.model_dump_json()
        self._max_bytes = max_object_bytes
        self._compression = compression
        self._variables = resolved_variables(storage)

    def __call__(self, reference: FileReference) -> Payload:
        for name, value in self._variables.items():
            os.environ.setdefault(name, value)
        storage = StorageSpec.model_validate_json(self._storage)
        try:
            data = open_object(
                storage, reference.key, reference.etag, compression=self._compression, max_bytes=self._max_bytes
            )
        except DeltaworksError as error:
            code = _OF_THE_OBJECT.get(error.condition)
            if code is None:
                raise
            return Payload(reference.seq, reference.key, None, Reason(code, "", error.message))
        return Payload(reference.seq, reference.key, data)


def resolved_variables(storage: AwsSpec) -> dict[str, str]:
    """The environment variables a storage's references name, with their values now."""
    references = [storage.endpoint, storage.access_key, storage.secret_key]
    return {
        reference.name: reference.resolve()
        for reference in references
        if reference is not None and not isinstance(reference, str)
    }
