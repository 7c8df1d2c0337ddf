"""Redacts events with personal data before they reach the spool, a log or a sink.

Data for the vault passes through the spool as one sealed frame per request, of kind IDENTITIES, whose payload is a JSON
line with the sealed frames in Base64. If a frame cannot be sealed the request is rejected: its sender keeps it, and
nothing is stored in plain text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from deltaworks.privacy.tokens.envelope_encryption import SealedFrame, SealedKind, Sealer, encode_sealed_file
from deltaworks.privacy.tokens.redactor import RedactionOutcome, RedactionResult, Redactor
from deltaworks.privacy.tokens.suppression import Suppression

#: Maximum number of bytes of an unreadable body that are sealed. A longer body is cut, and identified by its digest.
_MAX_SEALED_BODY_BYTES: Final = 65_536


class SourceRedactor:
    """Redacts the events of one source. Used by the request handler's thread, except for `suppress`.

    Args:
        sealer: encrypts for the source's namespace.
    """

    def __init__(self, walker: Redactor, sealer: Sealer) -> None:
        self.counts: Counter[str] = Counter()
        self._walker = walker
        self._sealer = sealer

    def begin_request(self, received_ms: int) -> RequestRedactor:
        """Starts the redaction of a request's events."""
        return RequestRedactor(self._walker, self._sealer, received_ms, self.counts)

    def suppress(self, suppression: Suppression) -> None:
        """Replaces the suppression list. Later events of people in the list are dropped."""
        self._walker.set_suppression(suppression)


class RequestRedactor:
    """Redacts the events of one request and collects their personal data for the vault."""

    def __init__(self, walker: Redactor, sealer: Sealer, received_ms: int, counts: Counter[str]) -> None:
        self._walker = walker
        self._sealer = sealer
        self._received_ms = received_ms
        self._stripped = RedactionResult(counts=counts)
        self._unreadable: list[bytes] = []

    def redact(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Redacts the event in place and returns it. Returns None, and counts the event, if it must not be stored."""
        outcome = self._walker.redact(event, at_ms=self._received_ms, result=self._stripped)
        return event if outcome is RedactionOutcome.KEPT else None

    def record_unreadable(self, text: str) -> None:
        """Records text that cannot be parsed, and so cannot be redacted. Only its sealed copy is stored."""
        self._stripped.counts["unreadable"] += 1
        self._unreadable.append(text.encode("utf-8", "surrogatepass"))

    def sealed_payload(self, request: str) -> bytes | None:
        """Returns the payload of the request's sealed frame; None without content to seal.

        Raises:
            TransientError: KEY_SERVICE_UNREACHABLE.
        """
        frames: list[list[Any]] = []
        identities = list(dict.fromkeys(self._stripped.identities))
        if identities:
            frames.append(
                [int(SealedKind.IDENTITIES), _to_base64(self._sealer.seal_identities(identities, name=request))]
            )
        day = datetime.fromtimestamp(self._received_ms / 1000, UTC).date().isoformat()
        for body in self._unreadable:
            name = hashlib.sha256(body).hexdigest()
            payload = self._sealer.seal_unreadable(body[:_MAX_SEALED_BODY_BYTES], name=name, day=day)
            frames.append([int(SealedKind.UNREADABLE), _to_base64(payload)])
        return json.dumps(frames, separators=(",", ":")).encode() if frames else None


def encode_vault_file(lines: Iterable[tuple[int, bytes]]) -> bytes:
    """Encodes payloads of sealed frames, with their event numbers, as a sealed file."""
    return encode_sealed_file(
        SealedFrame(seq, kind, base64.b64decode(payload))
        for seq, line in lines
        for kind, payload in _parse_frames(line)
    )


def _parse_frames(line: bytes) -> Sequence[tuple[int, str]]:
    frames: Sequence[tuple[int, str]] = json.loads(line)
    return frames


def _to_base64(payload: bytes) -> str:
    return base64.b64encode(payload).decode()
