"""Whom a request is about: the tokens of a person, from the one that the request names.

They are the subjects that the vault has for it, what else it has of these, and one hop of links: a device seen with the
subject in one event. Not the hops behind that: a shared tablet would make one person of a family. A token that others
are linked to as well is not this person's alone: it is neither suppressed nor looked for, and rows that it alone names
stay.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Protocol

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.selection import rows_where, sql_one_of
from deltaworks.vault.namespace_vault import NamespaceVault


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Whom a request is about.

    Args:
        subjects: the tokens under which the vault keeps keys.
        tokens: all that is to be nowhere any more, the subjects among them.
        shared: how many tokens are linked to the person and to others, and so stay.
    """

    subjects: tuple[str, ...]
    tokens: tuple[str, ...]
    shared: int = 0

    @property
    def digest(self) -> str:
        """SHA-256 over the tokens, by which a certificate names them."""
        return tokens_digest(self.tokens)

    def encode(self) -> bytes:
        """The object's bytes, for the vault."""
        return json.dumps({"format": 1, **asdict(self)}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Person:
        """What `encode` made."""
        fields = json.loads(data)
        subjects, tokens = (tuple(map(str, fields[name])) for name in ("subjects", "tokens"))
        return cls(subjects=subjects, tokens=tokens, shared=int(fields["shared"]))


def tokens_digest(tokens: Iterable[str]) -> str:
    """SHA-256 over tokens, whatever their order."""
    return hashlib.sha256("\n".join(sorted(tokens)).encode()).hexdigest()


class IdentityLookup(Protocol):
    """What is asked of the vault. `VaultIdentities` answers from its tables."""

    def subjects_of(self, tokens: Collection[str]) -> set[str]:
        """The subjects that any of these tokens was kept for."""

    def tokens_of(self, subjects: Collection[str]) -> set[str]:
        """The tokens whose values are kept for these subjects."""

    def links(self, *, subjects: Collection[str] = (), tokens: Collection[str] = ()) -> set[tuple[str, str]]:
        """Subject and token of every link of these subjects, or of these tokens."""


class OriginalIdLookup(Protocol):
    """What is asked of the mutations of a pipeline."""

    def original_ids(self, ids: Collection[str]) -> set[str]:
        """The ids as they arrived of rows that end under these."""


def resolve_person(token: str, identities: IdentityLookup, origins: Iterable[OriginalIdLookup] = ()) -> Person:
    """Whom a token is of. Reads only.

    Origins of merged ids are taken once: intervals say where every id ends, whatever lies between.
    """
    subjects = identities.subjects_of([token])
    if identities.links(subjects=[token]):
        subjects.add(token)
    subjects = subjects or {token}
    own = {token, *subjects, *identities.tokens_of(subjects)}
    linked = linked_tokens(subjects, identities)
    shared = shared_tokens(linked - own, subjects, identities)
    tokens = own | (linked - shared)
    for mutations in origins:
        tokens |= mutations.original_ids(tokens)
    return Person(subjects=tuple(sorted(subjects)), tokens=tuple(sorted(tokens)), shared=len(shared))


def linked_tokens(subjects: Collection[str], identities: IdentityLookup) -> set[str]:
    """The tokens seen with these subjects in one event."""
    return {token for _, token in identities.links(subjects=subjects)}


def shared_tokens(tokens: Collection[str], subjects: Collection[str], identities: IdentityLookup) -> set[str]:
    """Those of the tokens that were seen with somebody else as well."""
    if not tokens:
        return set()
    return {token for subject, token in identities.links(tokens=tokens) if subject not in subjects and subject != token}


class VaultIdentities:
    """Identities and links of one namespace, from the tables of the vault."""

    def __init__(self, vault: NamespaceVault) -> None:
        self._tables = vault.tables

    def subjects_of(self, tokens: Collection[str]) -> set[str]:
        """What `Identities` says."""
        return _values(self._tables.identities(tokens=tokens, subjects=tokens, columns=["subject"]))

    def tokens_of(self, subjects: Collection[str]) -> set[str]:
        """What `Identities` says."""
        return _values(self._tables.identities(subjects=subjects, columns=["token"]))

    def links(self, *, subjects: Collection[str] = (), tokens: Collection[str] = ()) -> set[tuple[str, str]]:
        """What `Identities` says."""
        rows = self._tables.links(subjects=subjects, tokens=tokens, columns=["subject", "token"])
        return {(row["subject"], row["token"]) for row in rows.to_pylist()}


class MutationIntervals:
    """The resolved intervals of one pipeline."""

    def __init__(self, lake: Lake, spec: PipelineSpec) -> None:
        self._lake = lake
        self._key = "" if spec.mutations is None else paths.table(spec.pipeline, spec.mutations.intervals)

    def original_ids(self, ids: Collection[str]) -> set[str]:
        """What `Origins` says."""
        opened = self._lake.open(self._key) if self._key else None
        return set() if opened is None else _values(rows_where(opened, sql_one_of("final_id", ids), columns=["id"]))


def _values(rows: pa.Table) -> set[str]:
    return set(rows.column(0).to_pylist())
