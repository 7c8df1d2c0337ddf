"""Stripping as plainly as it can be said: a copy of the event, walked once for each declared field."""

from __future__ import annotations

import copy
from typing import Any

from deltaworks.privacy.tokens.envelope_encryption import is_token, token
from deltaworks.privacy.tokens.redactor import truncate_ip

GONE = object()


def redact_slowly(event: dict[str, Any], fields: list[tuple[str, str, str | None]], key: bytes) -> dict[str, Any]:
    """The event after `(path, action, kind)` one by one."""
    result = copy.deepcopy(event)
    for path, action, kind in fields:
        _walk(result, path.replace("[]", "").split("."), action, kind, key)
    return result


def _walk(holder: dict[str, Any], names: list[str], action: str, kind: str | None, key: bytes) -> None:
    name, *rest = names
    if holder.get(name) is None:
        return
    value = holder[name]
    if not rest:
        changed = _changed(value, action, kind, key)
        if changed is GONE:
            del holder[name]
        else:
            holder[name] = changed
    elif isinstance(value, dict):
        _walk(value, rest, action, kind, key)
    elif isinstance(value, list):
        holder[name] = [None if isinstance(item, str | list) else item for item in value]
        for item in value:
            if isinstance(item, dict):
                _walk(item, rest, action, kind, key)
    elif isinstance(value, str):
        holder[name] = None


def _changed(value: Any, action: str, kind: str | None, key: bytes) -> Any:
    if action == "drop":
        return GONE
    if isinstance(value, list):
        return [None if item is None or isinstance(item, list) else _changed(item, action, kind, key) for item in value]
    if action == "truncate_ip":
        return truncate_ip(value) if isinstance(value, str) else None
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    text = str(value)
    return text if text == "" or is_token(text) else token(key, kind=kind or "", value=text)
