"""Sealing: values are encrypted where they are met, so that the disk and the sink of who met them cannot read them.

A sealed blob is `u8 1 | 12 B nonce | AES-256-GCM`. The nonce is 4 random bytes of the sealer and a counter, so that no
nonce comes twice under a key however many sealers share it; a data key is used for an hour. The additional data of the
encryption names the namespace, the writer and the frame, so that a blob opens only where it was put.

A frame says by itself how it is opened: `u16 length | head as JSON | blob`. A sealed file (`.dws`) is a header and
frames with lengths and checksums, as the spool has them.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from deltaworks.errors import ContractError, TransientError
from deltaworks.privacy.identities import Identity, decode_identities, encode_identities
from deltaworks.privacy.keys.base import SEAL_PURPOSE, UNREADABLE_PURPOSE, DataKey, KeyService, key_context

_VERSION: Final = 1
_NONCE_BYTES: Final = 12
_HEAD = struct.Struct(">H")
MAGIC: Final = b"DWSE"
_FILE_HEADER = struct.Struct("<4sHH")
_FRAME_HEAD = struct.Struct("<II")
_FRAME_REST = struct.Struct("<QBBH")
#: For how long a data key seals; and for how long the last one does while no new one can be had.
DATA_KEY_SECONDS: Final = 3600
MAX_OUTAGE_SECONDS: Final = 24 * 3600
_RETRY_SECONDS: Final = 30


class SealedKind(IntEnum):
    """What is in a sealed frame; the numbers are those of frames in the spool."""

    IDENTITIES = 2
    UNREADABLE = 3


class SealedFrame(NamedTuple):
    """One frame of a sealed file. `seq` orders the frames of a writer; `payload` is as `SealedPayload` reads it."""

    seq: int
    kind: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class SealedPayload:
    """A frame's payload taken apart. `wrapped` is empty where the key lies elsewhere: that of `day`, of the unreadable.

    `name` tells the frame from others of its writer: the id of a request, the task of a batch, a digest.
    """

    namespace: str
    writer: str
    name: str
    purpose: str
    wrapped: bytes
    day: str
    blob: bytes

    def encode(self) -> bytes:
        """The payload's bytes."""
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
        """Read a payload.

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
            raise _unreadable_error(f"a frame's head is none ({type(error).__name__})") from error

    @property
    def additional_data(self) -> bytes:
        """What the encryption binds the blob to."""
        return additional_data(self.namespace, self.purpose, self.writer, self.name)


def additional_data(*parts: str) -> bytes:
    """Parts as additional data of an encryption: each with its length, so that none runs into the next."""
    pieces = [part.encode("utf-8", "surrogatepass") for part in parts]
    return b"".join(len(piece).to_bytes(4, "big") + piece for piece in pieces)


class Nonces:
    """Nonces that never come twice from this process: 4 random bytes and a counter. Safe in threads."""

    def __init__(self) -> None:
        self._random = os.urandom(4)
        self._count = 0
        self._lock = threading.Lock()

    def next(self) -> bytes:
        """12 bytes."""
        with self._lock:
            self._count += 1
            return self._random + self._count.to_bytes(8, "big")


def seal_bytes(key: bytes, plain: bytes, additional: bytes, nonces: Nonces) -> bytes:
    """`u8 1 | nonce | AES-256-GCM` of the text."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = nonces.next()
    return bytes((_VERSION,)) + nonce + AESGCM(key).encrypt(nonce, plain, additional)


def unseal_bytes(key: bytes, blob: bytes, additional: bytes) -> bytes:
    """What was sealed.

    Raises:
        ContractError: SEALED_UNREADABLE, where the key, the additional data or the blob is another.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(blob) < 1 + _NONCE_BYTES or blob[0] != _VERSION:
        raise _unreadable_error("it is not sealed in a way this release knows")
    try:
        return AESGCM(key).decrypt(blob[1 : 1 + _NONCE_BYTES], blob[1 + _NONCE_BYTES :], additional)
    except InvalidTag as error:
        raise _unreadable_error("key, place or content is another than it was sealed with") from error


class Sealer:
    """Seals what one writer meets of one namespace. Safe in threads.

    Args:
        writer: a collector's id, or a pipeline.
        day_key: gives the key of a day, by which unreadable bodies are sealed; see `keys.opening.stored_key`.
        clock: seconds since 1970.
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
        self._nonces = Nonces()
        self._key: DataKey | None = None
        self._created_at = 0.0
        self._failed_at = 0.0
        self._days: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def seal_identities(self, identities: Iterable[Identity], *, name: str) -> bytes:
        """The payload of a frame with these identities.

        Raises:
            TransientError: KEY_SERVICE_UNREACHABLE, and the last key is older than a day.
        """
        key = self.data_key()
        payload = SealedPayload(self._namespace, self._writer, name, SEAL_PURPOSE, key.wrapped, "", b"")
        blob = seal_bytes(key.plain, encode_identities(identities), payload.additional_data, self._nonces)
        return SealedPayload(self._namespace, self._writer, name, SEAL_PURPOSE, key.wrapped, "", blob).encode()

    def seal_unreadable(self, body: bytes, *, name: str, day: str) -> bytes:
        """The payload of a frame with a body that could not be read, under the key of a day (`2026-11-23`).

        Raises:
            DeltaworksError: the key of the day cannot be had.
        """
        key = self.key_for_day(day)
        payload = SealedPayload(self._namespace, self._writer, name, UNREADABLE_PURPOSE, b"", day, b"")
        blob = seal_bytes(key, body, payload.additional_data, self._nonces)
        return SealedPayload(self._namespace, self._writer, name, UNREADABLE_PURPOSE, b"", day, blob).encode()

    def is_ready(self) -> bool:
        """Whether something can be sealed now."""
        try:
            self.data_key()
        except TransientError:
            return False
        return True

    def key_for_day(self, day: str) -> bytes:
        """The key under which unreadable bodies of a day are sealed."""
        with self._lock:
            if day not in self._days:
                self._days = {day: self._day_key(day)}
            return self._days[day]

    def data_key(self) -> DataKey:
        """The key of the hour; the last one, for up to a day, while the service makes none."""
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
    """Opens frames. Keys that were unwrapped are kept for the frames that follow. Used by one thread.

    Args:
        day_key: gives the key of a day of a namespace; raises where it was destroyed.
    """

    def __init__(self, service: KeyService, *, day_key: Callable[[str, str], bytes]) -> None:
        self._service = service
        self._day_key = day_key
        self._keys: dict[tuple[str, bytes], bytes] = {}

    def open_identities(self, payload: bytes) -> list[Identity]:
        """The identities of a frame.

        Raises:
            ContractError: SEALED_UNREADABLE, KEY_CONTEXT_DIFFERS, KEY_DESTROYED.
            TransientError: KEY_SERVICE_UNREACHABLE.
        """
        frame = SealedPayload.decode(payload)
        at = (frame.namespace, frame.wrapped)
        if at not in self._keys:
            self._keys[at] = self._service.unwrap(frame.wrapped, key_context(frame.namespace, frame.purpose))
        try:
            return decode_identities(unseal_bytes(self._keys[at], frame.blob, frame.additional_data))
        except (ValueError, TypeError) as error:
            raise _unreadable_error("what it holds is no list of identities") from error

    def open_unreadable(self, payload: bytes) -> bytes:
        """The body that could not be read.

        Raises:
            DeltaworksError: SEALED_UNREADABLE, or the key of its day cannot be had.
        """
        frame = SealedPayload.decode(payload)
        return unseal_bytes(self._day_key(frame.namespace, frame.day), frame.blob, frame.additional_data)


def encode_sealed_file(frames: Iterable[SealedFrame]) -> bytes:
    """A sealed file: `"DWSE" u16 version u16 0`, then frames, all numbers little-endian as in the spool.

    A frame is `u32 length | u32 crc32(rest) | u64 seq | u8 kind | u8 0 | u16 0 | payload`.
    """
    parts = [_FILE_HEADER.pack(MAGIC, _VERSION, 0)]
    for frame in frames:
        rest = _FRAME_REST.pack(frame.seq, frame.kind, 0, 0) + frame.payload
        parts += [_FRAME_HEAD.pack(len(rest), zlib.crc32(rest)), rest]
    return b"".join(parts)


def decode_sealed_file(data: bytes) -> Iterator[SealedFrame]:
    """The frames of a sealed file, in order.

    Raises:
        ContractError: SEALED_UNREADABLE, it is torn, damaged or of another release.
    """
    if len(data) < _FILE_HEADER.size or data[:4] != MAGIC:
        raise _unreadable_error("it is no sealed file")
    version = _FILE_HEADER.unpack_from(data)[1]
    if version != _VERSION:
        raise _unreadable_error(f"it is of version {version}, this release reads {_VERSION}")
    at = _FILE_HEADER.size
    while at < len(data):
        end = at + _FRAME_HEAD.size
        length, crc = _FRAME_HEAD.unpack_from(data, at) if end <= len(data) else (0, 0)
        rest = data[end : end + length]
        if length < _FRAME_REST.size or len(rest) < length or zlib.crc32(rest) != crc:
            raise _unreadable_error(f"the frame at byte {at} is cut off or damaged")
        seq, kind, _, _ = _FRAME_REST.unpack_from(rest)
        yield SealedFrame(seq, kind, rest[_FRAME_REST.size :])
        at = end + length


def _unreadable_error(reason: str) -> ContractError:
    return ContractError(
        "SEALED_UNREADABLE",
        f"Something sealed cannot be opened: {reason}.",
        hint="It stays where it is. Was it moved, cut, or sealed under another keyring? Put it back as it was written.",
    )
