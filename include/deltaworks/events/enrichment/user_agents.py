"""Parses user agents: browser or bot, operating system and device.

Log files contain user agents in URL encoding, from old servers encoded twice; they are decoded up to two times. The
regular expressions are those of uap-core, matched by ua-parser's library in Rust: a new text takes about 50 µs instead
of a millisecond; repeated texts are cached.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import ua_parser

#: Longer texts are cut, to bound the cost of matching a thousand regular expressions.
MAX_CHARACTERS = 2_048
_MAX_DECODINGS = 2
_BOT_DEVICE_FAMILY = "Spider"


def url_decode(text: str) -> str:
    """Removes up to two levels of URL encoding."""
    for _ in range(_MAX_DECODINGS):
        plain = unquote(text, errors="replace")
        if plain == text:
            break
        text = plain
    return text


def parse_user_agent(text: str) -> dict[str, Any] | None:
    """Parses a user agent to a dict of the `USER_AGENT_FIELDS`, with None for unknown ones. Returns None for an empty
    text.
    """
    plain = url_decode(text)[:MAX_CHARACTERS].strip()
    if not plain:
        return None
    # Invalid UTF-8 cannot be matched.
    parsed = ua_parser.parse(plain if plain.isascii() else plain.encode("utf-8", "replace").decode())
    browser, system, device = parsed.user_agent, parsed.os, parsed.device
    return {
        "browser": browser.family if browser else None,
        "browser_version": _version(browser.major, browser.minor, browser.patch) if browser else None,
        "os": system.family if system else None,
        "os_version": _version(system.major, system.minor, system.patch) if system else None,
        "device": device.family if device else None,
        "brand": device.brand if device else None,
        "model": device.model if device else None,
        "is_bot": device is not None and device.family == _BOT_DEVICE_FAMILY,
    }


def _version(*parts: str | None) -> str | None:
    present = []
    for part in parts:
        if not part:
            break
        present.append(part)
    return ".".join(present) or None
