"""The embedded stack's webhook for alerts, requested once at its first start and stored with its secrets."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from deltaworks.specs.environment import WEBHOOK_VARIABLE
from sandbox.stack.home import StackHome
from sandbox.stack.secrets import write_private

_FILE = "alerts_webhook"


def read_webhook(home: StackHome) -> str | None:
    """Returns the stored webhook; empty if the user declined one, None if the user was not asked yet."""
    path = home.root / _FILE
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def store_webhook(home: StackHome, url: str) -> None:
    """Stores a webhook; empty declines one. The file is readable by its owner only, because anyone with the URL can
    post.

    Raises:
        ValueError: not an http or https URL.
    """
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.netloc):
        raise ValueError(f"{url!r} is no address: write one like https://hooks.example.com/…")
    home.root.mkdir(parents=True, exist_ok=True)
    write_private(home.root / _FILE, f"{url}\n")


def webhook_variable(home: StackHome) -> dict[str, str]:
    """Returns the webhook as an environment variable; a value in the shell replaces the stored one."""
    url = os.environ.get(WEBHOOK_VARIABLE, "") or read_webhook(home) or ""
    return {WEBHOOK_VARIABLE: url} if url else {}
