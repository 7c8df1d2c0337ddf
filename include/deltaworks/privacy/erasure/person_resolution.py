"""Resolves the person of a request: all tokens that belong to the requested one.

These are the subject for which the vault stores the token, its other tokens, tokens linked directly, such as a device
that occurs with the subject in one event, and ids merged into the person's by mutations. Links are followed one step
only, because a shared tablet would merge a family into one person.

Everyone with the public key of an app can send events that combine any two identifiers. So a token that occurs with
more than one subject, in values, links or mutations, is shared. It is neither suppressed nor searched, and rows that
contain only this token stay. If the requested token itself is shared, the other subjects are spared: only the token
itself is erased, after a second person has confirmed it (`needs_confirmation`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal, Protocol

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.records.store import StateRecord
from deltaworks.privacy.vault.namespace_vault import NamespaceVault
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.selection import rows_where, sql_one_of

#: Subjects that are named as examples.
MAX_EXAMPLES: Final = 5


class Person(StateRecord):
    """The person of a request.

    Args:
        subjects: ids of the person, whose keys in the vault are destroyed: subjects and ids merged into them.
        tokens: all tokens to erase, including the subjects.
        shared: number of tokens that also occur with others and therefore stay.
        others: number of other subjects that the requested token occurs with, if it is shared; they are spared.
        examples: some of these others.
    """

    subjects: tuple[str, ...]
    tokens: tuple[str, ...]
    shared: int = 0
    others: int = 0
    examples: tuple[str, ...] = ()
    format: Literal[1] = 1

    @property
    def digest(self) -> str:
        """SHA-256 of the tokens, used in certificates."""
        return tokens_digest(self.tokens)

    def needs_confirmation(self, limit: int) -> bool:
        """Whether a second person must confirm the erasure: of a shared token, or of more subjects than the limit."""
        return self.others > 0 or len(self.subjects) > limit


def tokens_digest(tokens: Iterable[str]) -> str:
    """Returns the SHA-256 of tokens, independent of their order."""
    return hashlib.sha256("\n".join(sorted(tokens)).encode()).hexdigest()


Pairs = set[tuple[str, str]]


class IdentityLookup(Protocol):
    """Queries on the vault; implemented by `VaultIdentities`. Pairs are a subject and a token that occurred with it."""

    def stored(self, *, subjects: Collection[str] = (), tokens: Collection[str] = ()) -> Pairs:
        """Returns the pairs of all stored values of these subjects or tokens."""

    def links(self, *, subjects: Collection[str] = (), tokens: Collection[str] = ()) -> Pairs:
        """Returns the pairs of all links of these subjects or tokens."""


class MergedIdLookup(Protocol):
    """Queries on the mutations of a pipeline. Pairs are a final id and an id that was merged into it."""

    def merged(self, *, finals: Collection[str] = (), ids: Collection[str] = ()) -> Pairs:
        """Returns the pairs of these final ids or merged ids."""


def resolve_person(token: str, identities: IdentityLookup, mutations: Sequence[MergedIdLookup] = ()) -> Person:
    """Resolves a token to a person. Read-only.

    Merged ids are looked up once, since intervals contain the final id of every intermediate id.
    """
    owners = {subject for subject, _ in identities.stored(tokens=[token])} - {token}
    holders = owners | {subject for subject, _ in identities.links(tokens=[token])} - {token}
    others = _final_ids(holders, mutations) - {token}
    if len(others) > 1:
        roots = {token}
    else:
        others = set()
        is_subject = bool(identities.stored(subjects=[token]) or identities.links(subjects=[token]))
        roots = owners | ({token} if is_subject or not owners else set())
    subjects = roots | _merged_ids(roots, identities, mutations)
    found = {found for _, found in identities.stored(subjects=roots) | identities.links(subjects=roots)}
    candidates = found - subjects - {token}
    shared = shared_tokens(candidates, subjects, identities, mutations)
    own = (candidates - shared) | {token}
    # Other tokens of the person may have been merged too, such as the id of a device.
    merged = _merged_ids(own - subjects, identities, mutations) if not others else set()
    return Person(
        subjects=tuple(sorted(subjects | merged)),
        tokens=tuple(sorted(subjects | own | merged)),
        shared=len(shared),
        others=len(others),
        examples=tuple(sorted(others)[:MAX_EXAMPLES]),
    )


def shared_tokens(
    tokens: Collection[str],
    subjects: Collection[str],
    identities: IdentityLookup,
    mutations: Sequence[MergedIdLookup] = (),
) -> set[str]:
    """Returns the tokens that also occur with other subjects: in stored values, in links, or by a merge."""
    if not tokens:
        return set()
    pairs = identities.stored(tokens=tokens) | identities.links(tokens=tokens)
    for one in mutations:
        pairs |= one.merged(ids=tokens)
    return {token for subject, token in pairs if subject not in subjects and subject != token}


def _merged_ids(ids: Collection[str], identities: IdentityLookup, mutations: Sequence[MergedIdLookup]) -> set[str]:
    """Returns the ids that were merged into these and occur with no other subject."""
    merged = {merged for one in mutations for _, merged in one.merged(finals=ids)} - set(ids)
    return merged - shared_tokens(merged, {*ids, *merged}, identities, mutations)


def _final_ids(ids: Collection[str], mutations: Sequence[MergedIdLookup]) -> set[str]:
    """Returns these ids, with each that was merged into one other id replaced by that id."""
    finals: dict[str, set[str]] = {one: set() for one in ids}
    for mutation in mutations:
        for final, merged in mutation.merged(ids=ids):
            finals[merged].add(final)
    return {next(iter(found)) if len(found) == 1 else one for one, found in finals.items()}


class VaultIdentities:
    """Identities and links of one namespace, from the vault's tables."""

    def __init__(self, vault: NamespaceVault) -> None:
        self._tables = vault.tables

    def stored(self, *, subjects: Collection[str] = (), tokens: Collection[str] = ()) -> Pairs:
        """See `IdentityLookup.stored`."""
        return _pairs(self._tables.identities(subjects=subjects, tokens=tokens, columns=["subject", "token"]))

    def links(self, *, subjects: Collection[str] = (), tokens: Collection[str] = ()) -> Pairs:
        """See `IdentityLookup.links`."""
        return _pairs(self._tables.links(subjects=subjects, tokens=tokens, columns=["subject", "token"]))


class MutationIntervals:
    """The resolved intervals of one pipeline."""

    def __init__(self, lake: Lake, spec: PipelineSpec) -> None:
        self._lake = lake
        self._key = "" if spec.mutations is None else paths.table(spec.pipeline, spec.mutations.intervals)

    def merged(self, *, finals: Collection[str] = (), ids: Collection[str] = ()) -> Pairs:
        """See `MergedIdLookup.merged`."""
        delta_table = self._lake.open(self._key) if self._key else None
        if delta_table is None:
            return set()
        condition = f"final_id <> id AND ({sql_one_of('final_id', finals)} OR {sql_one_of('id', ids)})"
        return _pairs(rows_where(delta_table, condition, columns=["final_id", "id"]))


def _pairs(rows: pa.Table) -> Pairs:
    return set(zip(*(column.to_pylist() for column in rows.columns), strict=True))
