"""User agents taken apart: the browser or bot, its system and its device.

Servers encode the text for their logs, and old ones encode it twice: it is decoded at most twice, until nothing
changes. The expressions are those of uap-core. A text that was met before costs nothing; a new one takes about a
millisecond where none of ua-parser's compiled matchers is installed.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import ua_parser

#: Longer texts are no user agents that anybody knows; what is matched against a thousand expressions is bounded.
MAX_CHARACTERS = 2_048
_MAX_DECODINGS = 2
_BOT_DEVICE_FAMILY = "Spider"


def url_decode(text: str) -> str:
    """The text without the encoding of a log, which may have been put on it twice."""
    for _ in range(_MAX_DECODINGS):
        plain = unquote(text, errors="replace")
        if plain == text:
            break
        text = plain
    return text


def parse_user_agent(text: str) -> dict[str, Any] | None:
    """The `USER_AGENT_FIELDS` of a text, null where they cannot be told; None of an empty one."""
    plain = url_decode(text)[:MAX_CHARACTERS].strip()
    if not plain:
        return None
    # A text that was read from bytes which are no UTF-8 cannot be matched as it is.
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
