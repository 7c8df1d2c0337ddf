"""The keys by which a pass strips personal data: fixed by its driver before it begins, and sent to its tasks.

The key of a namespace is the same for ever, and the data key that seals holds for an hour, so a process asks its key
service rarely; who is suppressed is read anew for each pass.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.events.redaction import RedactionKeys, SealKeys, utc_day
from deltaworks.privacy import paths
from deltaworks.privacy.envelope_encryption import SealedFrame, Sealer, encode_sealed_file
from deltaworks.privacy.keys.base import KeyService
from deltaworks.privacy.keys.stored_keys import (
    namespace_token_key,
    open_key_service,
    privacy_settings,
    unreadable_day_key,
)
from deltaworks.privacy.suppression import NO_SUPPRESSION, Suppression, read_suppression
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.privacy_settings import PrivacySettings
from deltaworks.specs.storage import StorageSpec


@dataclass
class _NamespaceAccess:
    """What a process has of a namespace. A client of a store costs more to open than a pass asks of it."""

    service: KeyService
    objects: ObjectStore
    vault_storage: StorageSpec
    token_key: bytes = field(repr=False)
    suppression: Suppression = NO_SUPPRESSION
    sealers: dict[str, Sealer] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def vault(self) -> ObjectStore:
        """Where its identities go; a pass that seals nothing may lack the rights to it."""
        return open_objects(self.vault_storage)


_OPEN_NAMESPACES: Final[dict[tuple[str, str, str], _NamespaceAccess]] = {}
_OPEN_LOCK: Final = threading.Lock()


def load_redaction_keys(
    spec: PipelineSpec, lake: StorageSpec, *, seal_for_batch: str | None = None
) -> RedactionKeys | None:
    """The keys of a pass over a pipeline's events, and who is suppressed now; None where nothing is personal.

    Args:
        seal_as: the batch whose identities go to the vault; None for a pass that reads again what was read before.

    Raises:
        ConfigError: KEY_SERVICE_UNDECLARED, KEYRING_UNUSABLE, KEY_SERVICE_REFUSED.
        ContractError: SUPPRESSION_UNREADABLE, STORED_KEY_UNREADABLE.
        TransientError: KEY_SERVICE_UNREACHABLE, or the lake does not answer.
    """
    if spec.privacy is None:
        return None
    namespace = spec.privacy.namespace
    opened = _open_namespace(namespace, privacy_settings(spec, lake), lake)
    with opened.lock:
        opened.suppression = read_suppression(opened.objects, namespace, since=opened.suppression)
        seal = None if seal_for_batch is None else _create_seal_keys(opened, spec.pipeline, namespace, seal_for_batch)
        return RedactionKeys(opened.token_key, opened.suppression, seal)


def _open_namespace(namespace: str, settings: PrivacySettings, lake: StorageSpec) -> _NamespaceAccess:
    """What this process has of a namespace. Only what opens one waits for others that do."""
    at = (namespace, lake.root, settings.model_dump_json())
    if (opened := _OPEN_NAMESPACES.get(at)) is not None:
        return opened
    with _OPEN_LOCK:
        if at not in _OPEN_NAMESPACES:
            service, objects = open_key_service(settings.keys), open_objects(lake)
            _OPEN_NAMESPACES[at] = _NamespaceAccess(
                service, objects, settings.vault, namespace_token_key(service, objects, namespace)
            )
        return _OPEN_NAMESPACES[at]


def export_to_vault(
    spec: PipelineSpec, lake: StorageSpec, frames: Sequence[tuple[int, bytes]], *, name: str
) -> str | None:
    """Put what the tasks of a pass have sealed into the vault, as one file; its key, or None where there is nothing.

    To be called before the pass is fixed: what is fixed has its identities in the vault. A pass that is repeated puts
    another file, whose identities are the same ones.

    Raises:
        TransientError: the vault does not answer.
        ValueError: identities of a pipeline that declares none.
    """
    if not frames:
        return None
    if spec.privacy is None:
        raise ValueError(f"{spec.pipeline} declares nothing personal, and its tasks have sealed identities")
    key = paths.sealed_by_parser(spec.pipeline, name, uuid.uuid4().hex[:12])
    data = encode_sealed_file(SealedFrame(seq, kind, payload) for seq, (kind, payload) in enumerate(frames))
    _open_namespace(spec.privacy.namespace, privacy_settings(spec, lake), lake).vault.put(key, data)
    return key


def _create_seal_keys(opened: _NamespaceAccess, pipeline: str, namespace: str, batch: str) -> SealKeys:
    vault, sealer = opened.vault, opened.sealers.get(pipeline)
    if sealer is None:
        sealer = opened.sealers[pipeline] = Sealer(
            opened.service,
            namespace=namespace,
            writer=pipeline,
            day_key=lambda day: unreadable_day_key(opened.service, vault, namespace, day),
        )
    day = utc_day(time.time())
    return SealKeys(namespace, pipeline, batch, sealer.data_key(), day, sealer.key_for_day(day))
