"""Sealed values and files: opened only at their location, and corruption is detected."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.errors import ContractError, TransientError
from deltaworks.events.redaction import SealKeys
from deltaworks.privacy.key_service import (
    Context,
    DataKey,
    DestroyedKey,
    KeyService,
    LocalKeyring,
    decrypt_bytes,
    encrypt_bytes,
    new_head,
    public_key,
)
from deltaworks.privacy.tokens.envelope_encryption import (
    DATA_KEY_SECONDS,
    MAX_OUTAGE_SECONDS,
    Identity,
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


def day_public_key(day: str) -> bytes:
    return public_key(day_key(day))


def sealer_of(keys: KeyService, *, clock: Clock | None = None, namespace: str = "players") -> Sealer:
    return Sealer(keys, namespace=namespace, writer="edge-1", day_key=day_public_key, clock=clock or Clock())


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


#: Sealers that share one key, as measured: two tasks a second seal under the key of a day.
SEALERS_OF_AN_HOUR = 2 * 3_600
SEALERS_OF_A_DAY = 24 * SEALERS_OF_AN_HOUR
#: Random bytes at the start of an encrypted message: the salt of its subkey and its nonce.
HEAD_BYTES = 28
DAY_PUBLIC = public_key(bytes(32))


def task_sealer() -> Sealer:
    """A sealer as each task opens it, with the keys that the driver sends to all of them."""
    data_key = DataKey(bytes(32), b"wrapped", "key")
    return SealKeys("players", "shop", "batch", data_key, "2026-11-23", DAY_PUBLIC).sealer()


def heads_of_frames(sealer: Sealer, count: int = 1) -> list[bytes]:
    payloads = [sealer.seal_identities([], name="digest") for _ in range(count)]
    return [SealedPayload.decode(payload).blob[1 : 1 + HEAD_BYTES] for payload in payloads]


# Opening the sealers of a day takes half a minute; the heads that they take are made in less than a second.
@pytest.mark.parametrize("opened", [SEALERS_OF_AN_HOUR, pytest.param(SEALERS_OF_A_DAY, marks=pytest.mark.integration)])
def test_no_two_sealers_of_a_day_repeat_a_subkey_and_nonce(opened: int) -> None:
    made = [head for _ in range(opened) for head in heads_of_frames(task_sealer())]

    assert len(set(made)) == opened
    assert len({new_head() for _ in range(SEALERS_OF_A_DAY)}) == SEALERS_OF_A_DAY


@pytest.mark.integration
@pytest.mark.timeout(1800)
def test_no_two_sealers_of_a_year_repeat_a_subkey_and_nonce() -> None:
    for _ in range(365):
        made = {new_head() for _ in range(SEALERS_OF_A_DAY)}

        assert len(made) == SEALERS_OF_A_DAY


def test_every_bit_of_a_head_is_random_so_that_a_year_of_frames_repeats_none() -> None:
    made = 20_000
    heads = np.frombuffer(b"".join(heads_of_frames(task_sealer(), made)), np.uint8).reshape(made, HEAD_BYTES)
    ones = np.unpackbits(heads, axis=1).mean(axis=0)
    frames_of_a_year = 365 * SEALERS_OF_A_DAY * 10_000

    assert abs(ones - 0.5).max() < 0.03
    assert frames_of_a_year**2 / 2 ** (8 * HEAD_BYTES + 1) < 1e-40


def test_each_frame_has_a_subkey_of_its_own() -> None:
    (head,), frame = heads_of_frames(task_sealer()), encrypt_bytes(bytes(32), b"plain", b"")

    with pytest.raises(InvalidTag):
        AESGCM(bytes(32)).decrypt(frame[16:HEAD_BYTES], frame[HEAD_BYTES:], b"")
    with pytest.raises(InvalidTag):
        decrypt_bytes(bytes(32), head[:16] + frame[16:], b"")


def test_a_forked_or_copied_sealer_does_not_repeat_its_parent() -> None:
    sealer = task_sealer()
    heads_of_frames(sealer)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, heads_of_frames(sealer)[0])
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(read, HEAD_BYTES) != heads_of_frames(sealer)[0]
    os.close(read)
    os.close(write)


@given(key=st.binary(min_size=32, max_size=32), plain=st.binary(max_size=200), additional=st.binary(max_size=40))
def test_encrypted_bytes_open_with_their_key_and_additional_data_only(
    key: bytes, plain: bytes, additional: bytes
) -> None:
    data = encrypt_bytes(key, plain, additional)

    assert decrypt_bytes(key, data, additional) == plain
    for wrong in (
        (key, data, additional + b"x"),
        (bytes(31) + b"\1" + key[32:], data, b"y"),
        (key, data[:-1], additional),
    ):
        with pytest.raises(InvalidTag):
            decrypt_bytes(*wrong)


@pytest.mark.parametrize("place", [0, 15, 16, 27, 28, -1])
def test_a_changed_byte_anywhere_is_noticed(place: int) -> None:
    data = bytearray(encrypt_bytes(bytes(32), b"plain", b""))
    data[place] ^= 1

    with pytest.raises(InvalidTag):
        decrypt_bytes(bytes(32), bytes(data), b"")


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
