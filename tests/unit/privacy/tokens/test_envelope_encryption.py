"""Sealed values and files: opened only at their location, and corruption is detected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.errors import ContractError, TransientError
from deltaworks.privacy.keys.base import Context, DataKey, DestroyedKey, KeyService, LocalKeyring
from deltaworks.privacy.tokens.envelope_encryption import (
    DATA_KEY_SECONDS,
    MAX_OUTAGE_SECONDS,
    Identity,
    Nonces,
    SealedFrame,
    SealedKind,
    SealedPayload,
    Sealer,
    Unsealer,
    decode_sealed_file,
    encode_sealed_file,
)

ADA = Identity("p1_a", "email", "p1_b", "ada@example.org", 1_700_000_000_000)
LINK = Identity("p1_a", "device", "p1_c", None, 1_700_000_000_000)


class CountedKeys:
    """A keyring that counts what it makes, and can be away."""

    def __init__(self, keyring: LocalKeyring) -> None:
        self.keyring = keyring
        self.made = 0
        self.away = False

    def new_key(self, context: Context) -> DataKey:
        if self.away:
            raise TransientError("KEY_SERVICE_UNREACHABLE", "away")
        self.made += 1
        return self.keyring.new_key(context)

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:
        return self.keyring.unwrap(wrapped, context)

    def destroy(self, key_id: str) -> DestroyedKey:
        return self.keyring.destroy(key_id)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def keys(tmp_path: Path) -> CountedKeys:
    return CountedKeys(LocalKeyring(tmp_path / "keys"))


def day_key(day: str) -> bytes:
    return day.encode().ljust(32, b"\0")


def sealer_of(keys: KeyService, *, clock: Clock | None = None, namespace: str = "players") -> Sealer:
    return Sealer(keys, namespace=namespace, writer="edge-1", day_key=day_key, clock=clock or Clock())


def unsealer_of(keys: KeyService) -> Unsealer:
    return Unsealer(keys, day_key=lambda _namespace, day: day_key(day))


def test_identities_round_trip(keys: CountedKeys) -> None:
    payload = sealer_of(keys).seal_identities([ADA, LINK], name="r1")

    assert unsealer_of(keys).open_identities(payload) == [ADA, LINK]
    assert b"ada" not in payload


@pytest.mark.parametrize("change", [{"namespace": "contacts"}, {"writer": "edge-2"}, {"name": "r2"}])
def test_a_blob_does_not_open_at_another_location(keys: CountedKeys, change: dict[str, str]) -> None:
    payload = SealedPayload.decode(sealer_of(keys).seal_identities([ADA], name="r1"))
    other = SealedPayload.decode(sealer_of(keys, namespace="contacts").seal_identities([ADA], name="r1"))
    moved = replace(payload, **change) if "namespace" not in change else replace(other, blob=payload.blob)

    with pytest.raises(ContractError) as refused:
        unsealer_of(keys).open_identities(moved.encode())

    assert refused.value.condition == "SEALED_UNREADABLE"


def test_a_data_key_seals_for_an_hour(keys: CountedKeys) -> None:
    clock = Clock()
    sealer = sealer_of(keys, clock=clock)

    for passed in (0, 0, DATA_KEY_SECONDS - 1, 1):
        clock.now += passed
        sealer.seal_identities([ADA], name="r")

    assert keys.made == 2


def test_the_last_key_is_used_for_a_day_during_an_outage(keys: CountedKeys) -> None:
    clock = Clock()
    sealer = sealer_of(keys, clock=clock)
    first = SealedPayload.decode(sealer.seal_identities([ADA], name="r"))
    keys.away = True

    clock.now += MAX_OUTAGE_SECONDS - 1
    assert SealedPayload.decode(sealer.seal_identities([ADA], name="r")).wrapped == first.wrapped
    clock.now += 60
    with pytest.raises(TransientError):
        sealer.seal_identities([ADA], name="r")
    keys.away = False
    assert sealer.seal_identities([ADA], name="r")


def test_without_a_key_nothing_is_sealed_or_stored_in_plain_text(keys: CountedKeys) -> None:
    keys.away = True

    with pytest.raises(TransientError):
        sealer_of(keys).seal_identities([ADA], name="r")


def test_a_body_is_sealed_under_the_key_of_its_day(keys: CountedKeys) -> None:
    payload = sealer_of(keys).seal_unreadable(b'{"email":"ada@', name="digest", day="2026-11-23")

    assert unsealer_of(keys).open_unreadable(payload) == b'{"email":"ada@'
    assert b"email" not in payload
    other = replace(SealedPayload.decode(payload), day="2026-11-24").encode()
    with pytest.raises(ContractError):
        unsealer_of(keys).open_unreadable(other)


def test_no_nonce_comes_twice() -> None:
    nonces = [Nonces(), Nonces()]

    made = [source.next() for source in nonces for _ in range(1000)]

    assert len(set(made)) == 2000
    assert {len(nonce) for nonce in made} == {12}


frames = st.lists(
    st.builds(SealedFrame, st.integers(0, 2**64 - 1), st.sampled_from(list(SealedKind)), st.binary(max_size=60)),
    max_size=6,
)


@given(frames)
def test_a_file_has_the_frames_that_were_written(written: list[SealedFrame]) -> None:
    assert list(decode_sealed_file(encode_sealed_file(written))) == written


def test_a_truncated_or_changed_file_is_refused_without_wrong_frames() -> None:
    written = [SealedFrame(7, SealedKind.IDENTITIES, b"payload"), SealedFrame(8, SealedKind.UNREADABLE, b"other")]
    data = encode_sealed_file(written)
    whole = {len(encode_sealed_file(written[:count])) for count in range(3)}

    for end in range(len(data)):
        if end not in whole:
            with pytest.raises(ContractError):
                list(decode_sealed_file(data[:end]))
    for at in range(len(data)):
        if at not in (6, 7):  # two bytes of the header that later versions may use
            with pytest.raises(ContractError):
                list(decode_sealed_file(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]))
