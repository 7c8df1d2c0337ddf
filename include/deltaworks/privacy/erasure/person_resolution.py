"""Resolves the person of a request: all tokens that belong to the requested one.

These are the subjects that the vault stores for the token, their other tokens, and tokens linked directly, such as a
device that occurs with the subject in one event. Links are followed one step only, because a shared tablet would merge
a family into one person. A token that is also linked to other subjects is shared. It is neither suppressed nor
searched, and rows that contain only this token stay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.control import paths
from deltaworks.control.records.store import StateRecord
from deltaworks.privacy.vault.namespace_vault import NamespaceVault
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake


class Person(StateRecord):
    """The person of a request.

    Args:
        subjects: tokens with a key in the vault.
        tokens: all tokens to erase, including the subjects.
        shared: number of tokens that are also linked to others and therefore stay.
    """

    subjects: tuple[str, ...]
    tokens: tuple[str, ...]
    shared: int = 0
    format: Literal[1] = 1

    @property
    def digest(self) -> str:
        """SHA-256 of the tokens, used in certificates."""
        return tokens_digest(self.tokens)


def tokens_digest(tokens: Iterable[str]) -> str:
    """Returns the SHA-256 of tokens, independent of their order."""
    return hashlib.sha256("\n".join(sorted(tokens)).encode()).hexdigest()


class IdentityLookup(Protocol):
    """Queries on the vault; implemented by `VaultIdentities`."""

    def subjects_of(self, tokens: Collection[str]) -> set[str]:
        """Returns the subjects for which any of these tokens is stored."""

    def tokens_of(self, subjects: Collection[str]) -> set[str]:
        """Returns the stored tokens of these subjects."""

    def links(self, *, subjects: Collection[str] = (), tokens: Collection[str] = ()) -> set[tuple[str, str]]:
        """Returns pairs of subject and token for all links of these subjects or tokens."""


class OriginalIdLookup(Protocol):
    """Queries on the mutations of a pipeline."""

    def original_ids(self, ids: Collection[str]) -> set[str]:
        """Returns the original ids of rows whose final id is one of these."""


def resolve_person(token: str, identities: IdentityLookup, origins: Iterable[OriginalIdLookup] = ()) -> Person:
    """Resolves a token to a person. Read-only.

    Original ids are looked up once, since intervals contain the final id of every intermediate id.
    """
    subjects = identities.subjects_of([token])
    if identities.links(subjects=[token]):
        subjects.add(token)
    subjects = subjects or {token}
    own_tokens = {token, *subjects, *identities.tokens_of(subjects)}
    linked = linked_tokens(subjects, identities)
    shared = shared_tokens(linked - own_tokens, subjects, identities)
    tokens = own_tokens | (linked - shared)
    for mutations in origins:
        tokens |= mutations.original_ids(tokens)
    return Person(subjects=tuple(sorted(subjects)), tokens=tuple(sorted(tokens)), shared=len(shared))


def linked_tokens(subjects: Collection[str], identities: IdentityLookup) -> set[str]:
    """Returns the tokens that occur with these subjects in one event."""
    return {token for _, token in identities.links(subjects=subjects)}


def shared_tokens(tokens: Collection[str], subjects: Collection[str], identities: IdentityLookup) -> set[str]:
    """Returns the tokens that also occur with other subjects."""
    if not tokens:
        return set()
    return {token for subject, token in identities.links(tokens=tokens) if subject not in subjects and subject != token}


class VaultIdentities:
    """Identities and links of one namespace, from the vault's tables."""

    def __init__(self, vault: NamespaceVault) -> None:
        self._tables = vault.tables

    def subjects_of(self, tokens: Collection[str]) -> set[str]:
        """See `IdentityLookup.subjects_of`."""
        return _values(self._tables.identities(tokens=tokens, subjects=tokens, columns=["subject"]))

    def tokens_of(self, subjects: Collection[str]) -> set[str]:
        """See `IdentityLookup.tokens_of`."""
        return _values(self._tables.identities(subjects=subjects, columns=["token"]))

    def links(self, *, subjects: Collection[str] = (), tokens: Collection[str] = ()) -> set[tuple[str, str]]:
        """See `IdentityLookup.links`."""
        rows = self._tables.links(subjects=subjects, tokens=tokens, columns=["subject", "token"])
        return {(row["subject"], row["token"]) for row in rows.to_pylist()}


class MutationIntervals:
    """The resolved intervals of one pipeline."""

    def __init__(self, lake: Lake, spec: PipelineSpec) -> None:
        self._lake = lake
        self._key = "" if spec.mutations is None else paths.table(spec.pipeline, spec.mutations.intervals)

    def original_ids(self, ids: Collection[str]) -> set[str]:
        """See `OriginalIdLookup.original_ids`."""
        has_final_id = pc.field("final_id").isin(pa.array(sorted(ids), pa.string()))
        rows = self._lake.rows(self._key, columns=["id"], filters=has_final_id) if self._key else None
        return set() if rows is None else _values(rows)


def _values(rows: pa.Table) -> set[str]:
    return set(rows.column(0).to_pylist())
