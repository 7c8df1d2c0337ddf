"""Whom a request erases: one person, and nobody whom a stranger combined with an identifier of their own."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.control.provenance import SCHEDULER
from deltaworks.errors import ConfigError
from deltaworks.privacy.erasure.person_resolution import (
    MergedIdLookup,
    MutationIntervals,
    Pairs,
    Person,
    SubjectKinds,
    VaultIdentities,
    resolve_person,
)
from deltaworks.privacy.erasure.purge_window import person_of_token
from deltaworks.privacy.erasure.requests import describe_person, receive_request, token_of
from deltaworks.privacy.paths import parser_sealed_path
from deltaworks.privacy.stored_keys import day_public_key
from deltaworks.privacy.tokens.envelope_encryption import SealedFrame, SealedKind, Sealer, encode_sealed_file
from deltaworks.privacy.tokens.redactor import RedactionResult, Redactor
from deltaworks.privacy.vault.job import run_ingest
from deltaworks.specs.mutation import MutationsSpec
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from tests.unit.privacy.erasure.people_lake import SHOP, PeopleLake, add_rows
from tests.unit.privacy.erasure.test_operation import ask, request_of

STRANGER = "stranger@example.org"
NOW_MS = 1_795_132_800_000


class Known(NamedTuple):
    """What the vault and the mutations know, in memory: pairs of subject and token, and of final and merged id."""

    values: frozenset[tuple[str, str]] = frozenset()
    linked: frozenset[tuple[str, str]] = frozenset()
    merges: frozenset[tuple[str, str]] = frozenset()

    def stored(self, *, subjects: Collection[str] = (), tokens: Collection[str] = ()) -> Pairs:
        return {pair for pair in self.values if pair[0] in subjects or pair[1] in tokens}

    def links(self, *, subjects: Collection[str] = (), tokens: Collection[str] = ()) -> Pairs:
        return {pair for pair in self.linked if pair[0] in subjects or pair[1] in tokens}

    def merged(self, *, finals: Collection[str] = (), ids: Collection[str] = ()) -> Pairs:
        return {pair for pair in self.merges if pair[0] in finals or pair[1] in ids}

    def of_kinds(self, tokens: Collection[str], kinds: Collection[str]) -> set[str]:
        return set()

    def resolve(self, token: str) -> Person:
        return resolve_person(token, self, [self])


names = st.sampled_from("abcdefgh")
pairs = st.frozensets(st.tuples(names, names).filter(lambda pair: pair[0] != pair[1]), max_size=8)
knowledge = st.builds(Known, pairs, pairs, pairs)


@given(knowledge, names)
def test_no_token_of_a_person_occurs_with_anybody_else(known: Known, token: str) -> None:
    person = known.resolve(token)

    for other in set(person.tokens) - {token} - set(person.subjects):
        occurs_with = {subject for subject, found in known.values | known.linked if found == other}
        assert occurs_with <= set(person.subjects)
    assert token in person.tokens
    assert set(person.subjects) <= set(person.tokens)


@given(
    knowledge,
    names,
    st.sets(st.sampled_from(["v1", "v2", "v3", "v4", "v5"]), min_size=2),
    st.data(),
)
def test_a_stranger_who_combines_others_with_a_token_erases_none_of_them(
    known: Known, token: str, victims: set[str], data: st.DataObject
) -> None:
    """By any way of events: in values, in links, or both, each victim with a device and an email of their own."""
    own = {(victim, f"{victim}-{kind}") for victim in victims for kind in ("email", "device")}
    claims = {(victim, token) for victim in victims}
    in_values = data.draw(st.sets(st.sampled_from(sorted(claims))))
    claimed = known._replace(values=known.values | own | in_values, linked=known.linked | own | (claims - in_values))

    person = claimed.resolve(token)

    assert not victims & set(person.tokens)
    assert not {found for _, found in own} & set(person.tokens)
    assert person.others >= len(victims)
    assert person.needs_confirmation(limit=1000)


@given(knowledge, names, st.integers(2, 6), st.integers(1, 6))
def test_a_stranger_who_merges_others_into_an_id_waits_for_a_second_person(
    known: Known, token: str, victims: int, limit: int
) -> None:
    names = {f"v{number}" for number in range(victims)}

    person = known._replace(merges=known.merges | {(token, name) for name in names}).resolve(token)

    assert names & set(person.tokens) == names & set(person.subjects), "who is erased is counted"
    assert person.needs_confirmation(limit) == (len(person.subjects) > limit or person.others > 0)


@pytest.mark.parametrize(
    ("known", "token", "subjects", "tokens"),
    [
        pytest.param(Known(), "a", "a", "a", id="unknown"),
        pytest.param(Known(values=frozenset({("p", "e")})), "e", "p", "ep", id="an email of one subject"),
        pytest.param(Known(values=frozenset({("p", "e"), ("q", "e")})), "p", "p", "p", id="an email of two"),
        pytest.param(Known(values=frozenset({("p", "e"), ("q", "e")})), "e", "e", "e", id="by the email of two"),
        pytest.param(
            Known(linked=frozenset({("p", "t"), ("q", "t"), ("p", "d")})), "p", "p", "dp", id="a tablet of two"
        ),
        pytest.param(Known(merges=frozenset({("p", "old")})), "p", ("old", "p"), ("old", "p"), id="a merged id"),
        pytest.param(Known(merges=frozenset({("p", "old"), ("q", "old")})), "p", "p", "p", id="an id merged into two"),
        pytest.param(
            Known(linked=frozenset({("q", "old")}), merges=frozenset({("p", "old")})),
            "p",
            "p",
            "p",
            id="a merged id that occurs with another",
        ),
        pytest.param(
            Known(values=frozenset({("p", "e"), ("old", "e")}), merges=frozenset({("p", "old")})),
            "e",
            ("old", "p"),
            ("e", "old", "p"),
            id="an email of a subject before and after a merge",
        ),
        pytest.param(
            Known(values=frozenset({("p", "d")}), merges=frozenset({("q", "d")})), "p", "p", "p", id="merged elsewhere"
        ),
    ],
)
def test_whom_a_token_names(known: Known, token: str, subjects: Sequence[str], tokens: Sequence[str]) -> None:
    person = known.resolve(token)

    assert (person.subjects, person.tokens) == (tuple(subjects), tuple(tokens))


def take_events(lake: PeopleLake, events: Sequence[dict[str, Any]]) -> None:
    """Redacts events as the parser does, and ingests what it seals into the vault."""
    namespace = lake.namespace
    (spec,) = namespace.pipelines
    assert spec.privacy is not None
    result, redactor = RedactionResult(), Redactor(spec.privacy, namespace.token_key)
    for event in events:
        redactor.redact(dict(event), at_ms=NOW_MS, result=result)
    vault = namespace.vault

    def day_key(day: str) -> bytes:
        return day_public_key(vault.service, vault.objects, "players", day)

    sealer = Sealer(vault.service, namespace="players", writer="shop", day_key=day_key)
    frame = SealedFrame(1, SealedKind.IDENTITIES, sealer.seal_identities(result.identities, name="batch"))
    vault.objects.put(
        parser_sealed_path("shop", "batch", "1"), encode_sealed_file([frame] if result.identities else [])
    )
    run_ingest(lake.catalog.environment, "players", dry_run=False)


@pytest.fixture
def lake(tmp_path: Path) -> PeopleLake:
    return PeopleLake(tmp_path)


def test_a_stranger_claims_a_thousand_others_and_none_of_them_is_shredded(lake: PeopleLake) -> None:
    victims = [f"victim{number}" for number in range(1000)]
    own = [{"player": name, "email": f"{name}@example.org", "device": f"{name}-phone"} for name in victims]
    take_events(lake, [*own, *({"player": name, "email": STRANGER} for name in victims)])
    subjects = [lake.token("player", name) for name in victims]
    lake.orders(*((name, None, None, number) for number, name in enumerate(victims[:20])))
    before = lake.namespace.vault.keys.get(subjects)
    assert len(before) == 1000

    request = ask(lake, "email", STRANGER)
    (waiting,) = lake.advance()

    assert waiting.state == "resolved"
    assert "second person" in waiting.waiting_for
    assert "1,000 subjects" in waiting.waiting_for
    lake.namespace.erasures.confirm(request_of(lake, request), by="second")
    (after,) = lake.advance()
    assert after.state == "purged"
    assert lake.namespace.vault.keys.get(subjects) == before
    assert lake.amounts() == list(range(20))


@pytest.mark.parametrize("fields", [("player", "email"), ("player", "device"), ("device", "email")])
def test_no_combination_of_fields_erases_the_others(lake: PeopleLake, fields: tuple[str, str]) -> None:
    claimed, own = fields
    victims = [f"victim{number}" for number in range(4)]
    take_events(lake, [{claimed: name, own: STRANGER} for name in victims])
    subjects = [lake.token(claimed, name) for name in victims]
    keys = lake.namespace.vault.keys.get_or_create(subjects)

    request = ask(lake, own, STRANGER)
    lake.advance()
    lake.namespace.erasures.confirm(request_of(lake, request), by="second")
    lake.advance()

    assert lake.namespace.vault.keys.get(subjects) == keys


def test_a_stranger_who_claims_devices_of_others_waits_for_a_second_person(lake: PeopleLake) -> None:
    """A device without a player is its own subject, of which the vault knows nothing."""
    devices = [f"device{number}" for number in range(1000)]
    lake.orders(*((None, device, None, number) for number, device in enumerate(devices[:20])))
    take_events(lake, [{"device": device} for device in devices])
    take_events(lake, [{"player": "stranger", "device": device} for device in devices])

    request = ask(lake, "player", "stranger")
    (waiting,) = lake.advance(may_purge=False)

    assert (waiting.state, "1,001 subjects" in waiting.waiting_for) == ("resolved", True)
    assert lake.amounts() == list(range(20))
    lake.namespace.erasures.refuse(request_of(lake, request), reason="claims of others", by="second")
    assert lake.advance() == []


PLAYERS = SHOP.replace(
    "    - {path: email,", "    - {path: 'opponents[]', action: token, as: player}\n    - {path: email,"
)


def test_opponents_are_other_persons(tmp_path: Path) -> None:
    lake = PeopleLake(tmp_path, PLAYERS)
    victims = [f"victim{number}" for number in range(10)]
    take_events(lake, [{"player": "ann", "opponents": victims}, {"player": "ann", "email": "ann@example.org"}])

    person = person_of_token(lake.namespace, lake.token("email", "ann@example.org"))

    assert person.subjects == (lake.token("player", "ann"),)
    assert set(person.tokens) == {lake.token("player", "ann"), lake.token("email", "ann@example.org")}
    assert (person.shared, person.needs_confirmation(3)) == (10, False)


def test_a_person_whom_others_mention_is_not_shared(tmp_path: Path) -> None:
    lake = PeopleLake(tmp_path, PLAYERS)
    others = [f"player{number}" for number in range(10)]
    take_events(lake, [{"player": name, "opponents": ["ann"]} for name in others])
    take_events(lake, [{"player": "ann", "device": "phone"}])

    person = person_of_token(lake.namespace, lake.token("player", "ann"))

    assert set(person.tokens) == {lake.token("player", "ann"), lake.token("device", "phone")}
    assert not person.needs_confirmation(3)


def test_a_merged_id_that_others_mention_is_erased(tmp_path: Path) -> None:
    lake = mutable_lake(tmp_path, PLAYERS)
    add_merges(lake, ("ann", "guest"))
    take_events(lake, [{"player": "bob", "opponents": ["guest"]}])

    person = person_of_token(lake.namespace, lake.token("player", "ann"))

    assert set(person.subjects) == {lake.token("player", "ann"), lake.token("player", "guest")}


def test_kinds_of_persons_are_first_in_all_pipelines(lake: PeopleLake) -> None:
    assert lake.namespace.subject_kinds == SubjectKinds(persons=frozenset({"player"}), others=frozenset({"device"}))


def test_a_device_that_occurs_with_another_player_is_not_claimed(lake: PeopleLake) -> None:
    take_events(lake, [{"player": "victim", "device": "phone"}, {"player": "stranger", "device": "phone"}])

    person = person_of_token(lake.namespace, lake.token("player", "stranger"))

    assert (person.tokens, person.shared) == ((lake.token("player", "stranger"),), 1)


def mutable_lake(folder: Path, pipeline: str = SHOP) -> PeopleLake:
    """A lake whose pipeline has mutations, of which only the resolved intervals are needed here."""
    lake = PeopleLake(folder, pipeline)
    spec = lake.catalog.pipeline("shop").model_copy(update={"mutations": MutationsSpec(requests="requests")})
    lake.catalog = replace(lake.catalog, pipelines={"shop": spec})
    return lake


def add_merges(lake: PeopleLake, *merges: tuple[str, str]) -> None:
    """Adds resolved intervals: a final player and the player who was merged into it."""
    rows = [{"id": lake.token("player", merged), "final_id": lake.token("player", final)} for final, merged in merges]
    schema = pa.schema([("id", pa.string()), ("final_id", pa.string())])
    (spec,) = lake.namespace.pipelines
    assert spec.mutations is not None
    key = paths.table("shop", spec.mutations.intervals)
    add_rows(Lake(lake.catalog.environment.lake), key, rows, schema, partition_by=[])


def test_merges_of_a_stranger_wait_for_a_second_person_and_are_counted(tmp_path: Path) -> None:
    lake = mutable_lake(tmp_path)
    victims = [f"victim{number}" for number in range(1000)]
    add_merges(lake, *(("stranger", name) for name in victims))
    keys = lake.namespace.vault.keys.get_or_create([lake.token("player", name) for name in victims])

    ask(lake, "player", "stranger")
    (waiting,) = lake.advance()

    assert (waiting.state, "1,001 subjects" in waiting.waiting_for) == ("resolved", True)
    assert lake.namespace.vault.keys.get(keys) == keys


def test_lookups_of_tables_equal_those_in_memory(tmp_path: Path) -> None:
    lake = mutable_lake(tmp_path)
    add_merges(lake, ("ann", "guest"), ("ann", "ann"), ("bob", "other"))
    ann, email = lake.token("player", "ann"), lake.token("email", "ann@example.org")
    lake.identities((ann, "email", email))
    lake.links((ann, lake.token("device", "phone")))
    (spec,) = lake.namespace.pipelines
    vault = VaultIdentities(lake.namespace.vault)
    mutations: MergedIdLookup = MutationIntervals(Lake(lake.catalog.environment.lake), spec)

    assert vault.stored(tokens=[email]) == vault.stored(subjects=[ann]) == {(ann, email)}
    assert vault.links(subjects=[ann]) == {(ann, lake.token("device", "phone"))}
    assert mutations.merged(finals=[ann]) == {(ann, lake.token("player", "guest"))}
    assert mutations.merged(ids=[lake.token("player", "other")]) == {
        (lake.token("player", "bob"), lake.token("player", "other"))
    }


def merged_lake(folder: Path, guests: int) -> PeopleLake:
    lake = mutable_lake(folder)
    add_merges(lake, *(("ann", f"guest{number}") for number in range(guests)))
    return lake


@pytest.mark.parametrize(("guests", "state"), [(2, "purged"), (3, "resolved")])
def test_up_to_the_declared_number_nobody_has_to_confirm(tmp_path: Path, guests: int, state: str) -> None:
    lake = merged_lake(tmp_path, guests)
    ask(lake, "player", "ann")

    (result,) = lake.advance()

    assert result.state == state


def test_the_smallest_declared_number_of_a_namespace_counts(tmp_path: Path) -> None:
    lake = PeopleLake(tmp_path, SHOP.replace("  subject:", "  erase: {confirm_above: 1}\n  subject:"))

    assert lake.namespace.confirm_above == 1


@pytest.mark.parametrize("by", ["tests", SCHEDULER])
def test_who_received_a_request_does_not_confirm_it(tmp_path: Path, by: str) -> None:
    lake = merged_lake(tmp_path, 5)
    request = ask(lake, "player", "ann")
    lake.advance()

    with pytest.raises(ConfigError, match="ERASURE_NOT_CONFIRMED"):
        lake.namespace.erasures.confirm(request_of(lake, request), by=by)
    (result,) = lake.advance()
    assert result.state == "resolved"


def test_a_request_is_confirmed_once_its_subjects_are_known_and_not_before(tmp_path: Path) -> None:
    lake = merged_lake(tmp_path, 5)
    request = ask(lake, "player", "ann")

    with pytest.raises(ConfigError, match="ERASURE_NOT_CONFIRMED"):
        lake.namespace.erasures.confirm(request, by="second")


def test_what_was_confirmed_is_not_widened_by_later_events(tmp_path: Path) -> None:
    lake = merged_lake(tmp_path, 5)
    request = ask(lake, "player", "ann")
    lake.advance()
    lake.namespace.erasures.confirm(request_of(lake, request), by="second")
    victim = lake.token("player", "victim")
    add_merges(lake, ("ann", "victim"))
    keys = lake.namespace.vault.keys.get_or_create([victim, lake.token("player", "guest1")])

    (result,) = lake.advance()

    assert result.state == "purged"
    assert lake.namespace.vault.keys.get(keys) == {victim: keys[victim]}
    assert present(request_of(lake, request).step("confirmed")).by == "second"


def test_a_description_counts_subjects_and_names_some(lake: PeopleLake) -> None:
    take_events(lake, [{"player": f"victim{number}", "email": STRANGER} for number in range(8)])
    namespace = lake.namespace
    token = token_of(namespace, kind="email", value=STRANGER)

    own, spared, confirmation = describe_person(namespace, person_of_token(namespace, token))

    assert own.startswith("It erases 1 subject:")
    assert "spares 8 subjects:" in spared
    assert "and 3 more" in spared
    assert spared.count("email since 2026-11-20") == 5
    assert "second person" in confirmation
    assert STRANGER not in own + spared


def test_a_request_of_a_player_with_a_device_needs_no_confirmation(lake: PeopleLake) -> None:
    take_events(lake, [{"player": "ann", "email": "ann@example.org", "device": "phone"}])
    namespace = lake.namespace
    token = token_of(namespace, kind="email", value="ann@example.org")
    receive_request(namespace, token, received_at=dt.datetime.now(dt.UTC), by="tests")

    (description,) = describe_person(namespace, person_of_token(namespace, token))

    assert description.startswith("It erases 2 subjects:\n  ")
    assert f"{lake.token('player', 'ann')} (email since " in description
    assert f"{lake.token('device', 'phone')} (no values in the vault)" in description
