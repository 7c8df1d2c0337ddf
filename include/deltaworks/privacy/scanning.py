"""Looks for addresses of people in texts that nobody declared: emails, and phone numbers with their country."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

from deltaworks.specs.privacy import PrivacySpec

_EMAIL: Final = re.compile(r"[A-Za-z0-9_.+%-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*\.[A-Za-z]{2,24}")
_PHONE: Final = re.compile(r"(?<![0-9A-Za-z+])(?:\+|00)[1-9][0-9 ()./-]{6,18}[0-9](?![0-9A-Za-z])")
#: What JSON has in its bytes wherever one of its texts has an email or a phone number; found soon where there is none.
#: A character of theirs may be written as an escape, and the first slash in a number behind a backslash.
_AT_IN_JSON: Final = re.compile(rb"@")
_ZEROS_IN_JSON: Final = re.compile(rb"00[1-9][0-9 ()./-]{6,18}[0-9]")
_PLUS_IN_JSON: Final = re.compile(rb"\+[1-9][0-9 ()./-]{6,18}[0-9]")
_SLASH_IN_JSON: Final = re.compile(rb"[0-9 ().-]\\+/")
_ESCAPE_IN_JSON: Final = re.compile(rb"\\u00[2-7]")
_DIGITS: Final = re.compile(r"[0-9]")
_FEWEST_DIGITS, _MOST_DIGITS = 8, 15


class Scanner:
    """Counts texts with an email or a phone number, or takes them out. Declared fields are left alone.

    Counts are `scan_email`, `scan_phone`, and with `_dropped` behind them those that were taken out.
    """

    def __init__(self, spec: PrivacySpec) -> None:
        self._email, self._phone = spec.scan.email, spec.scan.phone

    def scan(self, event: dict[str, Any], counts: Counter[str]) -> None:
        """Look through an event that was stripped, in place."""
        pending: list[Any] = [event]
        while pending:
            holder = pending.pop()
            pairs = list(holder.items()) if type(holder) is dict else list(enumerate(holder))
            for place, value in pairs:
                kind = type(value)
                if kind is dict or kind is list:
                    pending.append(value)
                elif kind is str and len(value) > 5 and self._drops(value, counts):
                    holder[place] = None

    def may_find(self, json: bytes) -> bool:
        """Whether a text in JSON, in JSON within its texts too, may have what is looked for; False where none has."""
        return next(self._marks(json), None) is not None

    def suspects(self, texts: Sequence[bytes]) -> list[int]:
        """The places of those texts in JSON of which `may_find` holds. Few are looked at one by one."""
        starts = list(accumulate((len(text) + 1 for text in texts), initial=0))
        # No mark spans two of them: none has the character between.
        return sorted({bisect_right(starts, mark) - 1 for mark in self._marks(b"\n".join(texts))})

    def _marks(self, json: bytes) -> Iterator[int]:
        """Where in JSON something is that may be of what is looked for."""
        patterns: list[re.Pattern[bytes]] = []
        if self._email != "off" and b"@" in json:
            patterns.append(_AT_IN_JSON)
        if b"\\u00" in json:
            patterns.append(_ESCAPE_IN_JSON)
        if self._phone != "off":
            patterns += [_ZEROS_IN_JSON] if b"+" not in json else [_ZEROS_IN_JSON, _PLUS_IN_JSON]
            if b"\\/" in json:
                patterns.append(_SLASH_IN_JSON)
        for pattern in patterns:
            for match in pattern.finditer(json):
                yield match.start()

    def _drops(self, text: str, counts: Counter[str]) -> bool:
        drops = False
        if self._email != "off" and "@" in text and _EMAIL.search(text) is not None:
            drops |= self._noted("email", self._email, counts)
        if self._phone != "off" and ("+" in text or "00" in text) and _has_phone(text):
            drops |= self._noted("phone", self._phone, counts)
        return drops

    @staticmethod
    def _noted(kind: str, action: str, counts: Counter[str]) -> bool:
        counts[f"scan_{kind}" if action == "count" else f"scan_{kind}_dropped"] += 1
        return action == "drop"


def _has_phone(text: str) -> bool:
    return any(_FEWEST_DIGITS <= len(_DIGITS.findall(match.group())) <= _MOST_DIGITS for match in _PHONE.finditer(text))
