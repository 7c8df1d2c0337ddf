"""Payloads of file events: how a task opens an object."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

from deltaworks.errors import DeltaworksError
from deltaworks.events.parse import Payload
from deltaworks.events.reasons import Reason, ReasonCode
from deltaworks.sources.objects.fetch import open_object
from deltaworks.specs.sources.objects import FileSourceSpec
from deltaworks.specs.sources.payload import Compression
from deltaworks.specs.storage import AwsSpec, StorageSpec

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
    version_id: str | None = None


class FileOpener:
    """Opens an object inside a task. Carries the values of the storage's references, which a remote worker lacks."""

    def __init__(self, storage: StorageSpec, *, compression: Compression, max_object_bytes: int | None = None) -> None:
        self._storage = storage.model_dump_json()
        self._max_bytes = max_object_bytes
        self._compression = compression
        self._variables = resolved_variables(storage)

    @classmethod
    def of(cls, landing: StorageSpec, source: FileSourceSpec) -> Self:
        """As a pipeline's source declares it."""
        storage = landing.of_bucket(source.bucket)
        return cls(storage, compression=source.compression, max_object_bytes=source.max_object_bytes)

    def __call__(self, reference: FileReference) -> Payload:
        for name, value in self._variables.items():
            os.environ.setdefault(name, value)
        storage = StorageSpec.model_validate_json(self._storage)
        try:
            data = open_object(
                storage,
                reference.key,
                reference.etag,
                version_id=reference.version_id,
                compression=self._compression,
                max_bytes=self._max_bytes,
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
