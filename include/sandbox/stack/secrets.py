"""Keys and passwords of one embedded stack, generated at its first start and readable by the owner only."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

ADMIN_USER = "admin"


@dataclass(frozen=True, slots=True)
class StackSecrets:
    """All secrets of a stack."""

    admin_password: str
    fernet_key: str
    jwt_secret: str
    api_secret_key: str
    lake_access_key: str
    lake_secret_key: str
    aws_access_key: str
    aws_secret_key: str


def load_or_create_secrets(path: Path) -> StackSecrets:
    """Returns the secrets in `path`; generates and stores missing ones first."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    generated = dataclasses.asdict(_generate())
    values = {name: stored.get(name, fresh) for name, fresh in generated.items()}
    if values != stored:
        write_private(path, json.dumps(values, indent=2) + "\n")
    return StackSecrets(**values)


def _generate() -> StackSecrets:
    return StackSecrets(
        admin_password=secrets.token_urlsafe(12),
        fernet_key=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        jwt_secret=secrets.token_urlsafe(48),
        api_secret_key=secrets.token_urlsafe(32),
        lake_access_key=f"lake{secrets.token_hex(8)}",
        lake_secret_key=secrets.token_urlsafe(24),
        aws_access_key=f"AKIA{secrets.token_hex(8).upper()}",
        aws_secret_key=secrets.token_urlsafe(30),
    )


def write_private(path: Path, text: str) -> None:
    """Replaces a file atomically. Only its owner can read it, at any time."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)
