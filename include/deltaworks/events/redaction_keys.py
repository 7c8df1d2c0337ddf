"""Loads the keys for redacting personal data in the driver, which sends them to the tasks of a parse; and looks up the
tokens of identifiers that the caller knows, so that it can use rows and messages keyed by token.

A namespace's token key never changes, and the data key for sealing is used for an hour, so the key service is called
rarely. The suppression list is read for every parse.

A token cannot be turned back: a caller builds its own map from identifiers to tokens. The values behind tokens are in
the vault, for fields with `action: vault`, and a reveal of them is recorded. A look-up needs the right to unwrap the
namespace's token key, and none on the vault.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ConfigError, ContractError
from deltaworks.events.redaction import RedactionKeys, SealKeys, utc_day
from deltaworks.privacy import paths
from deltaworks.privacy.key_service import KeyService
from deltaworks.privacy.stored_keys import (
    day_public_key,
    namespace_token_key,
    open_key_service,
    privacy_settings,
)
from deltaworks.privacy.tokens.envelope_encryption import SealedFrame, Sealer, encode_sealed_file, normalize, token
from deltaworks.privacy.tokens.suppression import NO_SUPPRESSION, Suppression, read_suppression
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.privacy import PrivacySettings
from deltaworks.specs.storage import StorageSpec


@dataclass
class _NamespaceAccess:
    """Clients and keys of a namespace, cached per process, because opening a client costs more than a parse's
    requests."""

    service: KeyService
    objects: ObjectStore
    vault_storage: StorageSpec
    token_key: bytes = field(repr=False)
    suppression: Suppression = NO_SUPPRESSION
    sealers: dict[str, Sealer] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def vault(self) -> ObjectStore:
        """The vault's client, opened on first use: a parse that seals nothing may have no access to the vault."""
        return open_objects(self.vault_storage)


_OPEN_NAMESPACES: Final[dict[tuple[str, str, str], _NamespaceAccess]] = {}
_OPEN_LOCK: Final = threading.Lock()


def load_redaction_keys(
    spec: PipelineSpec, lake: StorageSpec, *, seal_for_batch: str | None = None
) -> RedactionKeys | None:
    """Loads the keys and the current suppression list for a pipeline; None if it declares no personal data.

    Args:
        seal_for_batch: the batch whose identities are written to the vault; None if events are read again, whose
            identities are in the vault already.

    Raises:
        ConfigError: KEY_SERVICE_UNDECLARED, KEYRING_UNUSABLE, KEY_SERVICE_REFUSED.
        ContractError: SUPPRESSION_UNREADABLE, STORED_KEY_UNREADABLE.
        TransientError: KEY_SERVICE_UNREACHABLE, or the lake does not answer.
    """
    if spec.privacy is None:
        return None
    namespace = spec.privacy.namespace
    access = _open_namespace(namespace, privacy_settings(spec, lake), lake)
    with access.lock:
        access.suppression = read_suppression(access.objects, namespace, since=access.suppression)
        seal = None if seal_for_batch is None else _create_seal_keys(access, spec.pipeline, namespace, seal_for_batch)
        return RedactionKeys(access.token_key, access.suppression, seal)


def _open_namespace(namespace: str, settings: PrivacySettings, lake: StorageSpec) -> _NamespaceAccess:
    """Returns the cached access to a namespace; opens it on first use. Callers wait only while it is being opened."""
    cache_key = (namespace, lake.root, settings.model_dump_json())
    if (access := _OPEN_NAMESPACES.get(cache_key)) is not None:
        return access
    with _OPEN_LOCK:
        if cache_key not in _OPEN_NAMESPACES:
            service, objects = open_key_service(settings.keys), open_objects(lake)
            _OPEN_NAMESPACES[cache_key] = _NamespaceAccess(
                service, objects, settings.vault, namespace_token_key(service, objects, namespace)
            )
        return _OPEN_NAMESPACES[cache_key]


def export_to_vault(
    spec: PipelineSpec, lake: StorageSpec, frames: Sequence[tuple[int, bytes]], *, name: str
) -> str | None:
    """Writes the frames sealed by tasks to the vault as one file. Returns its key, or None without frames.

    Call it before the batch is prepared, so that identities of a prepared batch are always in the vault. A repeated
    batch writes another file with the same identities.

    Raises:
        TransientError: the vault does not answer.
        ValueError: the pipeline declares no personal data.
    """
    if not frames:
        return None
    if spec.privacy is None:
        raise ValueError(f"{spec.pipeline} declares no personal data, but its tasks sealed identities")
    key = paths.parser_sealed_path(spec.pipeline, name, uuid.uuid4().hex[:12])
    data = encode_sealed_file(SealedFrame(seq, kind, payload) for seq, (kind, payload) in enumerate(frames))
    _open_namespace(spec.privacy.namespace, privacy_settings(spec, lake), lake).vault.put(key, data)
    return key


def _create_seal_keys(access: _NamespaceAccess, pipeline: str, namespace: str, batch: str) -> SealKeys:
    vault, sealer = access.vault, access.sealers.get(pipeline)
    if sealer is None:
        sealer = access.sealers[pipeline] = Sealer(
            access.service,
            namespace=namespace,
            writer=pipeline,
            day_key=lambda day: day_public_key(access.service, vault, namespace, day),
        )
    day = utc_day(time.time())
    return SealKeys(namespace, pipeline, batch, sealer.data_key(), day, sealer.key_for_day(day))


def lookup_tokens(catalog: Catalog, namespace: str, *, kind: str, values: Iterable[str]) -> Mapping[str, str | None]:
    """Returns the token of each identifier; None for erased people, whose events are dropped.

    Reads the key (cached by the process) and the current suppression list; writes nothing. Safe for concurrent use.

    Args:
        kind: as in `as` of the namespace's private fields, such as `player`.

    Raises:
        ConfigError: NAMESPACE_UNKNOWN; TOKEN_KIND_UNKNOWN; those of `load_redaction_keys`.
        ContractError, TransientError: from `load_redaction_keys`.
    """
    specs = catalog.namespace(namespace)
    kinds = sorted({name for spec in specs if spec.privacy is not None for name in spec.privacy.kinds})
    if kind not in kinds:
        raise ConfigError(
            "TOKEN_KIND_UNKNOWN",
            f"The namespace {namespace!r} has no identifiers of the kind {kind!r}.",
            hint=f"Use one of {', '.join(kinds)}.",
        )
    keys = load_redaction_keys(specs[0], catalog.environment.lake)
    if keys is None:  # `catalog.namespace` returns pipelines with personal data only
        raise ContractError("STORED_KEY_UNREADABLE", f"The namespace {namespace!r} has no token key.")
    now_us = int(time.time() * 1_000_000)
    tokens: dict[str, str | None] = {}
    for value in values:
        if not normalize(kind, value):
            continue
        computed = token(keys.token_key, kind=kind, value=value)
        tokens[value] = None if keys.suppression.matches(keys.token_key, [computed], at_us=now_us) else computed
    return tokens
