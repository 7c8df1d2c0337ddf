"""Resolves the person of a request: all tokens that belong to the requested one.

These are the subject for which the vault stores the token, its other tokens, tokens linked directly, such as a device
that occurs with the subject in one event, and ids merged into the person's by mutations. Links are followed one step
only, because a shared tablet would merge a family into one person.

Everyone with the public key of an app can send events that combine any two identifiers. So a token that occurs with
more than one subject, in values, links or mutations, is shared. It is neither suppressed nor searched, and rows that
contain only this token stay. If the requested token itself is shared, the other subjects are spared: only the token
itself is erased, after a second person has confirmed it (`needs_confirmation`).

A kind that identifies persons, such as a player, is different: a linked token of this kind is another person, such as
an opponent, and always spared; a person whom others mention is not shared by them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.control import paths
from deltaworks.control.records.store import StateRecord
from deltaworks.privacy.vault.namespace_vault import NamespaceVault
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake

#: Subjects that are named as examples.
MAX_EXAMPLES: Final = 5


class Person(StateRecord):
    """The person of a request.

    Args:
        subjects: ids of the person, whose keys in the vault are destroyed: subjects, ids merged into them, and other
            tokens that can be the subject of an event.
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

    def of_kinds(self, tokens: Collection[str], kinds: Collection[str]) -> set[str]:
        """Returns those of these tokens that are linked as one of these kinds; see `SubjectKinds`."""


@dataclass(frozen=True, slots=True)
class SubjectKinds:
    """The kinds of identifiers that can be the subject of an event.

    Args:
        persons: kinds that identify a person wherever they occur.
        others: kinds that are the subject of events without a person, such as a device. A linked token of such a kind
            counts as a subject: events with only this token leave nothing in the vault, so it may be another person's.
    """

    persons: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()


class MergedIdLookup(Protocol):
    """Queries on the mutations of a pipeline. Pairs are a final id and an id that was merged into it."""

    def merged(self, *, finals: Collection[str] = (), ids: Collection[str] = ()) -> Pairs:
        """Returns the pairs of these final ids or merged ids."""


def resolve_person(
    token: str,
    identities: IdentityLookup,
    mutations: Sequence[MergedIdLookup] = (),
    *,
    kinds: SubjectKinds = SubjectKinds(),
) -> Person:
    """Resolves a token to a person. Read-only.

    Merged ids are looked up once, since intervals contain the final id of every intermediate id.
    """
    roots, others = _roots(token, identities, mutations, kinds)
    subjects = roots | _merged_ids(roots, identities, mutations, kinds)
    pairs = identities.stored(subjects=roots) | identities.links(subjects=roots)
    candidates = {pair[1] for pair in pairs} - subjects - {token}
    shared = identities.of_kinds(candidates, kinds.persons)
    shared |= shared_tokens(candidates - shared, subjects, identities, mutations)
    own = (candidates - shared) | {token}
    # Other tokens of the person may have been merged too, such as the id of a device.
    merged = _merged_ids(own - subjects, identities, mutations, kinds) if not others else set()
    counted = identities.of_kinds(own - {token}, kinds.others)
    return Person(
        subjects=tuple(sorted(subjects | merged | counted)),
        tokens=tuple(sorted(subjects | own | merged)),
        shared=len(shared),
        others=len(others),
        examples=tuple(sorted(others)[:MAX_EXAMPLES]),
    )


def _roots(
    token: str, identities: IdentityLookup, mutations: Sequence[MergedIdLookup], kinds: SubjectKinds
) -> tuple[set[str], set[str]]:
    """Returns the ids of the person whom a token names, and the others among whom it is shared."""
    if identities.of_kinds([token], kinds.persons):
        return {token}, set()
    owners = {subject for subject, _ in identities.stored(tokens=[token])} - {token}
    holders = owners | {subject for subject, _ in identities.links(tokens=[token])} - {token}
    others = _final_ids(holders, mutations) - {token}
    if len(others) > 1:
        return {token}, others
    is_subject = bool(identities.stored(subjects=[token]) or identities.links(subjects=[token]))
    return owners | ({token} if is_subject or not owners else set()), set()


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


def _merged_ids(
    ids: Collection[str], identities: IdentityLookup, mutations: Sequence[MergedIdLookup], kinds: SubjectKinds
) -> set[str]:
    """Returns the ids that were merged into these and occur with no other subject. A person may be mentioned by others,
    but not merged into others.
    """
    merged = {merged for one in mutations for _, merged in one.merged(finals=ids)} - set(ids)
    elsewhere = {id for one in mutations for final, id in one.merged(ids=merged) if final not in {*ids, *merged}}
    unnamed = merged - identities.of_kinds(merged, kinds.persons)
    return merged - elsewhere - shared_tokens(unnamed, {*ids, *merged}, identities)


def _final_ids(ids: Collection[str], mutations: Sequence[MergedIdLookup]) -> set[str]:
    """Returns these ids, with each that was merged into one other id replaced by that id."""
    finals: dict[str, set[str]] = {one: set() for one in ids}
    for mutation in mutations:
        for final, merged in mutation.merged(ids=ids):
            finals[merged].add(final)
    return {next(iter(into)) if len(into) == 1 else one for one, into in finals.items()}


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

    def of_kinds(self, tokens: Collection[str], kinds: Collection[str]) -> set[str]:
        """See `IdentityLookup.of_kinds`."""
        rows = self._tables.links(tokens=tokens, columns=["token", "kind"])
        return {token for token, kind in _pairs(rows) if token in tokens and kind in kinds}


class MutationIntervals:
    """The resolved intervals of one pipeline."""

    def __init__(self, lake: Lake, spec: PipelineSpec) -> None:
        self._lake = lake
        self._key = "" if spec.mutations is None else paths.table(spec.pipeline, spec.mutations.intervals)

    def merged(self, *, finals: Collection[str] = (), ids: Collection[str] = ()) -> Pairs:
        """See `MergedIdLookup.merged`."""
        has_final = pc.field("final_id").isin(pa.array(sorted(finals), pa.string()))
        has_id = pc.field("id").isin(pa.array(sorted(ids), pa.string()))
        condition = (pc.field("final_id") != pc.field("id")) & (has_final | has_id)
        rows = self._lake.rows(self._key, columns=["final_id", "id"], filters=condition) if self._key else None
        return set() if rows is None else _pairs(rows)


def _pairs(rows: pa.Table) -> Pairs:
    return set(zip(*(column.to_pylist() for column in rows.columns), strict=True))
