"""Tokens that replace identifiers, and the encryption of the original values for the vault.

A token is an HMAC-SHA-256 (RFC 2104) of the kind and the normalized value with the namespace's key. Everyone with the
key derives the same token without a look-up: collectors, parsers, and a reprocess a year later. Without the key,
guessed values cannot be tested against a token, as would be possible with a plain hash. An identity links a token to
its subject and its original value.

Writers encrypt identities for the vault, so that neither their disks nor their sinks reveal them. Sealing means
encrypting with a data key that is stored next to the value, wrapped by the key service; a data key is used for an
hour. A sealed blob is `u8 1` and the output of `encrypt_bytes`: every blob has a subkey and a nonce of its own. The
associated data contains the namespace, the writer and the frame, so a blob cannot be opened in another place.

A frame contains the information needed to open it: `u16 length | header as JSON | blob`. A sealed file (`.dws`) is a
header and frames with lengths and checksums, as in the spool.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import re
import struct
import threading
import time
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from deltaworks.errors import ContractError, TransientError
from deltaworks.privacy.key_service import (
    SEAL_PURPOSE,
    UNREADABLE_PURPOSE,
    DataKey,
    KeyService,
    decapsulate_key,
    decrypt_bytes,
    encapsulate_key,
    encrypt_bytes,
    key_context,
)

# Identities.


class Identity(NamedTuple):
    """A token that occurred in an event, with its subject and its original value.

    Attributes:
        subject: token of the event's subject; equal to `token` if the event has only that one.
        value: the tokenized value, for fields with the action `vault`; None only links the token to the subject.
        at_ms: arrival time of the event in milliseconds since 1970.
    """

    subject: str
    kind: str
    token: str
    value: str | None
    at_ms: int


def encode_identities(identities: Iterable[Identity]) -> bytes:
    """Encodes identities as JSON, the plaintext of an encrypted frame. Each identity is a list."""
    return json.dumps([list(identity) for identity in identities], separators=(",", ":")).encode()


def decode_identities(data: bytes) -> list[Identity]:
    """Decodes the output of `encode_identities`.

    Raises:
        ValueError: invalid data.
    """
    return [Identity(*parts) for parts in json.loads(data)]


# Sealing.

_VERSION: Final = 1
_HEAD = struct.Struct(">H")
MAGIC: Final = b"DWSE"
_FILE_HEADER = struct.Struct("<4sHH")
_FRAME_HEAD = struct.Struct("<II")
_FRAME_REST = struct.Struct("<QBBH")
#: How long a data key is used, and the maximum during an outage of the key service.
DATA_KEY_SECONDS: Final = 3600
MAX_OUTAGE_SECONDS: Final = 24 * 3600
_RETRY_SECONDS: Final = 30


class SealedKind(IntEnum):
    """Content types of sealed frames. The numbers equal those of frames in the spool."""

    IDENTITIES = 2
    UNREADABLE = 3


class SealedFrame(NamedTuple):
    """A frame of a sealed file. `seq` orders the frames of a writer; `payload` is an encoded `SealedPayload`."""

    seq: int
    kind: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class SealedPayload:
    """The payload of a frame: the encrypted blob and what is needed to decrypt it.

    Attributes:
        name: identifies the frame within its writer: a request id, a task of a batch, or a digest.
        wrapped: the wrapped data key; for unreadable bodies a key encapsulated for the key pair of `day`.
    """

    namespace: str
    writer: str
    name: str
    purpose: str
    wrapped: bytes
    day: str
    blob: bytes

    def encode(self) -> bytes:
        """Returns the payload's bytes."""
        head: dict[str, Any] = {
            "namespace": self.namespace,
            "writer": self.writer,
            "name": self.name,
            "purpose": self.purpose,
        }
        if self.wrapped:
            head["wrapped"] = base64.b64encode(self.wrapped).decode()
        if self.day:
            head["day"] = self.day
        text = json.dumps(head, separators=(",", ":")).encode()
        return _HEAD.pack(len(text)) + text + self.blob

    @classmethod
    def decode(cls, data: bytes) -> SealedPayload:
        """Parses the bytes of a payload.

        Raises:
            ContractError: SEALED_UNREADABLE.
        """
        try:
            end = _HEAD.size + _HEAD.unpack_from(data)[0]
            head = json.loads(data[_HEAD.size : end])
            return cls(
                namespace=head["namespace"],
                writer=head["writer"],
                name=head["name"],
                purpose=head["purpose"],
                wrapped=base64.b64decode(head.get("wrapped", ""), validate=True),
                day=head.get("day", ""),
                blob=data[end:],
            )
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise _unreadable_error(f"the header of a frame is invalid ({type(error).__name__})") from error

    @property
    def additional_data(self) -> bytes:
        """The associated data to decrypt the blob with."""
        return additional_data(self.namespace, self.purpose, self.writer, self.name)


def additional_data(*parts: str) -> bytes:
    """Encodes parts as associated data. Each part has its length, so different parts never have the same bytes."""
    pieces = [part.encode("utf-8", "surrogatepass") for part in parts]
    return b"".join(len(piece).to_bytes(4, "big") + piece for piece in pieces)


def seal_bytes(key: bytes, plain: bytes, additional: bytes) -> bytes:
    """Encrypts bytes and returns the blob `u8 1 | encrypted bytes`."""
    return bytes((_VERSION,)) + encrypt_bytes(key, plain, additional)


def unseal_bytes(key: bytes, blob: bytes, additional: bytes) -> bytes:
    """Decrypts a blob of `seal_bytes`.

    Raises:
        ContractError: SEALED_UNREADABLE, the key, the associated data or the blob differs.
    """
    from cryptography.exceptions import InvalidTag

    if not blob or blob[0] != _VERSION:
        raise _unreadable_error("its version is not supported by this release")
    try:
        return decrypt_bytes(key, blob[1:], additional)
    except InvalidTag as error:
        raise _unreadable_error("its key, location or content has changed since it was sealed") from error


class Sealer:
    """Encrypts the frames of one writer and namespace. Thread-safe.

    Args:
        writer: a collector's id, or a pipeline.
        day_key: returns the public key of a day, for unreadable bodies; see `keys.stored_keys.day_public_key`.
        clock: returns seconds since 1970.
    """

    def __init__(
        self,
        service: KeyService,
        *,
        namespace: str,
        writer: str,
        day_key: Callable[[str], bytes],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._service = service
        self._namespace = namespace
        self._writer = writer
        self._day_key = day_key
        self._clock = clock
        self._key: DataKey | None = None
        self._created_at = 0.0
        self._failed_at = 0.0
        self._days: dict[str, bytes] = {}
        self._day_keys: dict[bytes, tuple[bytes, bytes]] = {}
        self._lock = threading.Lock()

    def seal_identities(self, identities: Iterable[Identity], *, name: str) -> bytes:
        """Encrypts identities and returns the frame's payload.

        Raises:
            TransientError: KEY_SERVICE_UNREACHABLE, and the last data key is older than a day.
        """
        key = self.data_key()
        payload = SealedPayload(self._namespace, self._writer, name, SEAL_PURPOSE, key.wrapped, "", b"")
        blob = seal_bytes(key.plain, encode_identities(identities), payload.additional_data)
        return SealedPayload(self._namespace, self._writer, name, SEAL_PURPOSE, key.wrapped, "", blob).encode()

    def seal_unreadable(self, body: bytes, *, name: str, day: str) -> bytes:
        """Encrypts an unreadable body for the key of a day (`2026-11-23`) and returns the frame's payload.

        Raises:
            DeltaworksError: the day key is not available.
        """
        wrapped, key = self._encapsulated_key(self.key_for_day(day))
        payload = SealedPayload(self._namespace, self._writer, name, UNREADABLE_PURPOSE, wrapped, day, b"")
        blob = seal_bytes(key, body, payload.additional_data)
        return SealedPayload(self._namespace, self._writer, name, UNREADABLE_PURPOSE, wrapped, day, blob).encode()

    def key_for_day(self, day: str) -> bytes:
        """Returns the public key for the unreadable bodies of a day."""
        with self._lock:
            if day not in self._days:
                self._days = {day: self._day_key(day)}
            return self._days[day]

    def _encapsulated_key(self, public: bytes) -> tuple[bytes, bytes]:
        """Returns a key for the owner of a day's key pair, with its encapsulation. One agreement serves all bodies of
        the day, as it costs ten times as much as encrypting a body.
        """
        with self._lock:
            if public not in self._day_keys:
                self._day_keys = {public: encapsulate_key(public)}
            return self._day_keys[public]

    def data_key(self) -> DataKey:
        """Returns the current data key. During an outage of the key service, returns the last one for up to a day."""
        with self._lock:
            now = self._clock()
            if self._key is not None and now - self._created_at < DATA_KEY_SECONDS:
                return self._key
            is_usable = self._key is not None and now - self._created_at < MAX_OUTAGE_SECONDS
            if self._key is not None and is_usable and now - self._failed_at < _RETRY_SECONDS:
                return self._key
            try:
                self._key = self._service.new_key(key_context(self._namespace, SEAL_PURPOSE))
            except TransientError:
                self._failed_at = now
                if self._key is None or not is_usable:
                    raise
            else:
                self._created_at = now
            return self._key


class Unsealer:
    """Decrypts frames. Caches unwrapped keys. Not thread-safe.

    Args:
        day_key: returns the private key of a day of a namespace; raises if it was destroyed.
    """

    def __init__(self, service: KeyService, *, day_key: Callable[[str, str], bytes]) -> None:
        self._service = service
        self._day_key = day_key
        self._keys: dict[tuple[str, bytes], bytes] = {}

    def open_identities(self, payload: bytes) -> list[Identity]:
        """Decrypts the identities of a frame.

        Raises:
            ContractError: SEALED_UNREADABLE, KEY_CONTEXT_DIFFERS, KEY_DESTROYED.
            TransientError: KEY_SERVICE_UNREACHABLE.
        """
        frame = SealedPayload.decode(payload)
        cache_key = (frame.namespace, frame.wrapped)
        if cache_key not in self._keys:
            self._keys[cache_key] = self._service.unwrap(frame.wrapped, key_context(frame.namespace, frame.purpose))
        try:
            return decode_identities(unseal_bytes(self._keys[cache_key], frame.blob, frame.additional_data))
        except (ValueError, TypeError) as error:
            raise _unreadable_error("it does not contain identities") from error

    def open_unreadable(self, payload: bytes) -> bytes:
        """Decrypts the unreadable body of a frame.

        Raises:
            DeltaworksError: SEALED_UNREADABLE, or the day key is not available.
        """
        from cryptography.exceptions import InvalidTag

        frame = SealedPayload.decode(payload)
        private = self._day_key(frame.namespace, frame.day)
        try:
            key = decapsulate_key(private, frame.wrapped)
        except InvalidTag as error:
            raise _unreadable_error("the key in its header is invalid") from error
        return unseal_bytes(key, frame.blob, frame.additional_data)


def encode_sealed_file(frames: Iterable[SealedFrame]) -> bytes:
    """Encodes a sealed file: `"DWSE" u16 version u16 0`, then frames, with little-endian numbers as in the spool.

    A frame is `u32 length | u32 crc32(rest) | u64 seq | u8 kind | u8 0 | u16 0 | payload`.
    """
    parts = [_FILE_HEADER.pack(MAGIC, _VERSION, 0)]
    for frame in frames:
        rest = _FRAME_REST.pack(frame.seq, frame.kind, 0, 0) + frame.payload
        parts += [_FRAME_HEAD.pack(len(rest), zlib.crc32(rest)), rest]
    return b"".join(parts)


def decode_sealed_file(data: bytes) -> Iterator[SealedFrame]:
    """Yields the frames of a sealed file, in order.

    Raises:
        ContractError: SEALED_UNREADABLE, it is truncated, corrupt or of another release.
    """
    if len(data) < _FILE_HEADER.size or data[:4] != MAGIC:
        raise _unreadable_error("it is not a sealed file")
    version = _FILE_HEADER.unpack_from(data)[1]
    if version != _VERSION:
        raise _unreadable_error(f"its version is {version}; this release reads {_VERSION}")
    offset = _FILE_HEADER.size
    while offset < len(data):
        end = offset + _FRAME_HEAD.size
        length, crc = _FRAME_HEAD.unpack_from(data, offset) if end <= len(data) else (0, 0)
        rest = data[end : end + length]
        if length < _FRAME_REST.size or len(rest) < length or zlib.crc32(rest) != crc:
            raise _unreadable_error(f"the frame at byte {offset} is truncated or corrupt")
        seq, kind, _, _ = _FRAME_REST.unpack_from(rest)
        yield SealedFrame(seq, kind, rest[_FRAME_REST.size :])
        offset = end + length


def _unreadable_error(reason: str) -> ContractError:
    return ContractError("SEALED_UNREADABLE", f"A sealed file or value cannot be opened: {reason}.")


# Tokens.

#: Prefix of tokens: `p` and the version of the normalization.
TOKEN_PREFIX: Final = "p1_"  # noqa: S105  a prefix, not a secret
#: Prefix of random tokens, which replace erased subjects and are recorded nowhere.
RANDOM_TOKEN_PREFIX: Final = "x1_"  # noqa: S105  a prefix, not a secret
_TOKEN_BYTES: Final = 16
_DIGEST_BYTES: Final = 16
TOKEN_LENGTH: Final = 29
#: Lower-case Base32 (RFC 4648), two characters at a time: four times as fast as the standard library.
_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"
_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]
_PADDING_BITS: Final = 2
_SHIFTS: Final = range(8 * _TOKEN_BYTES + _PADDING_BITS - 10, -1, -10)
_TOKEN_PATTERN = re.compile(r"[px]1_[a-z2-7]{26}")
_PHONE_SEPARATORS = re.compile(r"[\s().\-/\u00a0\u2010-\u2015]+")


def token(key: bytes, *, kind: str, value: str) -> str:
    """Returns the token of an identifier: `p1_` and 26 letters and digits. Deterministic for key, kind and value.

    Args:
        key: token key of the namespace, 32 bytes.
        kind: values of `email` and `phone` are normalized; others are used unchanged.
    """
    text = normalize(kind, value).encode("utf-8", "surrogatepass")
    name = kind.encode()
    message = len(name).to_bytes(4, "big") + name + len(text).to_bytes(4, "big") + text
    digest = hmac.digest(key, message, "sha256")[:_TOKEN_BYTES]
    return TOKEN_PREFIX + _base32(digest)


def random_token() -> str:
    """Returns a random token, for rows that are retained without a subject. It is recorded nowhere."""
    return RANDOM_TOKEN_PREFIX + _base32(os.urandom(_TOKEN_BYTES))


def is_token(value: str) -> bool:
    """Returns whether a text has the form of a token. Redaction does not change tokens and is therefore idempotent."""
    return len(value) == TOKEN_LENGTH and _TOKEN_PATTERN.fullmatch(value) is not None


def normalize(kind: str, value: str) -> str:
    """Returns the normalized form of a value, from which its token is computed.

    Emails: NFKC, trimmed, lower case. Phone numbers: E.164 as far as possible, digits after a plus, with a leading `00`
    read as plus. A missing country code is not added.
    """
    if kind == "email":
        return unicodedata.normalize("NFKC", value).strip().lower()
    if kind == "phone":
        digits = _PHONE_SEPARATORS.sub("", unicodedata.normalize("NFKC", value))
        return f"+{digits[2:]}" if digits.startswith("00") else digits
    return value


def derive_day_key(key: bytes, day: str) -> bytes:
    """Derives the key for tokens that are valid for one day (`2026-11-23`, UTC), so that events of different days
    cannot be linked.
    """
    return hmac.digest(key, b"deltaworks.tokens.day\0" + day.encode(), "sha256")


def suppression_digest(key: bytes, token: str) -> str:
    """Returns the digest of a token for suppression lists: a second HMAC, 32 hexadecimal digits.

    Without the key, the list cannot be compared with tokens in the lake's rows.
    """
    second = hmac.digest(key, b"deltaworks.suppression", "sha256")
    return hmac.digest(second, token.encode(), "sha256")[:_DIGEST_BYTES].hex()


def _base32(data: bytes) -> str:
    number = int.from_bytes(data, "big") << _PADDING_BITS
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])
