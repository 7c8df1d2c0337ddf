"""Scans texts of undeclared fields for personal data: emails and international phone numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from deltaworks.specs.privacy import PrivacySpec

_EMAIL: Final = re.compile(r"[A-Za-z0-9_.+%-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*\.[A-Za-z]{2,24}")
_PHONE: Final = re.compile(r"(?<![0-9A-Za-z+])(?:\+|00)[1-9][0-9 ()./-]{6,18}[0-9](?![0-9A-Za-z])")
_DIGITS: Final = re.compile(r"[0-9]")
_MIN_PHONE_DIGITS, _MAX_PHONE_DIGITS = 8, 15


class _Patterns:
    """Patterns that match JSON if one of its texts contains an email or a phone number. A match may also be a false
    positive.

    Characters may be written as escapes, and a slash in a number may be preceded by backslashes.
    """

    def __init__(self, convert: Callable[[str], Any]) -> None:
        self.at, self.plus, self.backslash = convert("@"), convert("+"), convert("\\")
        self.zeros = re.compile(convert("00[1-9][0-9 ()./-]{6,18}[0-9]"))
        self.number = re.compile(convert(r"\+[1-9][0-9 ()./-]{6,18}[0-9]"))
        self.slash = re.compile(convert(r"[0-9 ().-]\\+/"))
        self.escape = re.compile(convert(r"\\u00[2-7]"))


_TEXT_PATTERNS: Final = _Patterns(str)
_BYTES_PATTERNS: Final = _Patterns(str.encode)


class Scanner:
    """Counts or drops texts with an email or a phone number in undeclared fields. Declared fields contain only tokens.

    Counts are `scan_email` and `scan_phone`, and with the suffix `_dropped` for dropped texts.
    """

    def __init__(self, spec: PrivacySpec) -> None:
        self._email, self._phone = spec.scan.email, spec.scan.phone

    def scan(self, event: dict[str, Any], counts: Counter[str]) -> None:
        """Scans a redacted event and drops texts in place, if declared."""
        pending: list[Any] = [event]
        while pending:
            container = pending.pop()
            pairs = list(container.items()) if type(container) is dict else list(enumerate(container))
            for key, value in pairs:
                kind = type(value)
                if kind is dict or kind is list:
                    pending.append(value)
                elif kind is str and len(value) > 5 and self._should_drop(value, counts):
                    container[key] = None

    def may_contain(self, json: str | bytes) -> bool:
        """Returns False if neither the JSON nor JSON nested in its texts contains a match. True is not certain."""
        marks = _TEXT_PATTERNS if isinstance(json, str) else _BYTES_PATTERNS
        if self._email != "off" and marks.at in json:
            return True
        phones = self._phone != "off"
        if marks.backslash in json and (
            marks.escape.search(json) is not None or (phones and marks.slash.search(json) is not None)
        ):
            return True
        return phones and (
            marks.zeros.search(json) is not None or (marks.plus in json and marks.number.search(json) is not None)
        )

    def _should_drop(self, text: str, counts: Counter[str]) -> bool:
        drops = False
        if self._email != "off" and "@" in text and _EMAIL.search(text) is not None:
            drops |= self._count_match("email", self._email, counts)
        if self._phone != "off" and ("+" in text or "00" in text) and _has_phone(text):
            drops |= self._count_match("phone", self._phone, counts)
        return drops

    @staticmethod
    def _count_match(kind: str, action: str, counts: Counter[str]) -> bool:
        counts[f"scan_{kind}" if action == "count" else f"scan_{kind}_dropped"] += 1
        return action == "drop"


def _has_phone(text: str) -> bool:
    return any(
        _MIN_PHONE_DIGITS <= len(_DIGITS.findall(match.group())) <= _MAX_PHONE_DIGITS for match in _PHONE.finditer(text)
    )
