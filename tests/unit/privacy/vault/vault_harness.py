"""An environment with a vault on local disk, and sealed files as collectors and the parser write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from deltaworks.control.objects import ObjectStore
from deltaworks.privacy import paths
from deltaworks.privacy.key_service import KeyService
from deltaworks.privacy.stored_keys import day_public_key
from deltaworks.privacy.tokens.envelope_encryption import (
    Identity,
    SealedFrame,
    SealedKind,
    Sealer,
    encode_sealed_file,
    token,
)
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.testing import environment_spec, local_storage

NAMESPACE = "players"
DAY_MS = 86_400_000
#: 2026-11-20, 00:00 UTC.
AT_MS = 1_795_132_800_000
_TOKEN_KEY = bytes(32)


def environment_of(folder: Path) -> EnvironmentSpec:
    """A lake, a landing folder, a vault and a keyring, each in a folder of its own."""
    keys = {"kind": "keyring", "folder": str(folder / "keys")}
    return environment_spec(folder, privacy={"keys": keys, "vault": local_storage(folder / "vault")})


def subject_of(name: str) -> str:
    """The token of a player."""
    return token(_TOKEN_KEY, kind="player", value=name)


def email_of(name: str, *, at_ms: int = AT_MS, address: str = "") -> Identity:
    """A player's email, seen in one event."""
    value = address or f"{name}@example.org"
    return Identity(subject_of(name), "email", token(_TOKEN_KEY, kind="email", value=value), value, at_ms)


def device_of(name: str, device: str, *, at_ms: int = AT_MS) -> Identity:
    """A device seen in an event of a player: a link, and no value."""
    return Identity(subject_of(name), "device", token(_TOKEN_KEY, kind="device", value=device), None, at_ms)


def seal_file(
    objects: ObjectStore,
    service: KeyService,
    name: str,
    identities: Sequence[Identity] = (),
    *,
    unreadable: Mapping[str, Sequence[bytes]] | None = None,
    others: Mapping[str, Sequence[Identity]] | None = None,
) -> str:
    """Put one sealed file; its key.

    Args:
        unreadable: bodies by day.
        others: identities by further namespaces, as a collector with several sources seals them into one file.
    """
    frames: list[SealedFrame] = []

    def add(kind: SealedKind, payload: bytes) -> None:
        frames.append(SealedFrame(len(frames) + 1, int(kind), payload))

    for namespace, of_namespace in {NAMESPACE: identities, **(others or {})}.items():

        def day_key(day: str, namespace: str = namespace) -> bytes:
            return day_public_key(service, objects, namespace, day)

        sealer = Sealer(service, namespace=namespace, writer="edge", day_key=day_key)
        if of_namespace:
            add(SealedKind.IDENTITIES, sealer.seal_identities(of_namespace, name=name))
        if namespace == NAMESPACE:
            for day, bodies in (unreadable or {}).items():
                for number, body in enumerate(bodies):
                    add(SealedKind.UNREADABLE, sealer.seal_unreadable(body, name=f"{name}-{number}", day=day))
    key = paths.sealed_files_path(f"edge/{name}.dws")
    objects.put(key, encode_sealed_file(frames))
    return key
