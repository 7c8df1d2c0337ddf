"""The channel of alerts of the embedded stack: asked for once, at its first start, and kept with its secrets."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from deltaworks.specs.environment import WEBHOOK_VARIABLE
from sandbox.stack.home import StackHome
from sandbox.stack.secrets import write_private

_FILE = "alerts_webhook"


def read_webhook(home: StackHome) -> str | None:
    """The address that was kept, empty where none is wanted; None where nobody was asked yet."""
    path = home.root / _FILE
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def store_webhook(home: StackHome, url: str) -> None:
    """Keep an address, or that none is wanted (empty). Whoever has it can post to it, so the file is private.

    Raises:
        ValueError: it is no address of http or https.
    """
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.netloc):
        raise ValueError(f"{url!r} is no address: write one like https://hooks.example.com/…")
    home.root.mkdir(parents=True, exist_ok=True)
    write_private(home.root / _FILE, f"{url}\n")


def webhook_variable(home: StackHome) -> dict[str, str]:
    """The variable that the stack's processes get: what the shell says, or what was kept."""
    url = os.environ.get(WEBHOOK_VARIABLE, "") or read_webhook(home) or ""
    return {WEBHOOK_VARIABLE: url} if url else {}
