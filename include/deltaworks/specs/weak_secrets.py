"""Secrets that are none: blank values, and those that anybody tries first, the formerly published ones among them.

Everywhere but in `local`, whose secrets are made by `deltaworks up`, they are refused when a process starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

from deltaworks.errors import ConfigError
from deltaworks.specs.base import Reference, find_references

LOCAL = "local"
#: In lower case. The last line is of earlier versions of docker/local.env.
COMMON_SECRETS = frozenset(
    [
        "admin",
        "admin123",
        "administrator",
        "airflow",
        "changeme",
        "change-me",
        "change_me",
        "default",
        "deltaworks",
        "dummy",
        "example",
        "foobar",
        "guest",
        "key",
        "letmein",
        "minio",
        "minio123",
        "minioadmin",
        "none",
        "null",
        "pass",
        "passw0rd",
        "password",
        "password1",
        "password123",
        "postgres",
        "qwerty",
        "root",
        "secret",
        "secretkey",
        "secret-key",
        "spark",
        "test",
        "test123",
        "testing",
        "testtest",
        "todo",
        "user",
        "xxx",
        "0000",
        "1234",
        "12345",
        "123456",
        "12345678",
        "123456789",
        "akiaiosfodnn7example",
        "wjalrxutnfemi/k7mdeng/bpxrficyexamplekey",
        "temporary_key",
        "temporary_ctx",
        "local-lake",
        "local-lake-secret",
        "local-aws",
        "local-aws-secret",
        "local-profile-only",
        "zgvsdgf3b3jrcy1sb2nhbc1wcm9mawxllwtles0wmda=",
    ]
)
#: Keys of an environment whose reference is a secret; addresses are references, too.
_SECRET_KEYS = frozenset(
    {
        "access_key",
        "secret_key",
        "secret",
        "token",
        "password",
        "truststore_password",
        "keystore_password",
        "key_password",
    }
)


def secret_weakness(value: str) -> str | None:
    """What is wrong with a secret, as the end of a sentence; None where nothing is known against it."""
    if not value.strip():
        return "is blank"
    if value.strip().strip("\"'").lower() in COMMON_SECRETS:
        return "is a value that everybody knows"
    return None


def reject_weak(value: str, *, location: str, variable: str) -> None:
    """Refuse a blank or well-known secret.

    Args:
        place: file and key, or whatever else says where the secret is used.

    Raises:
        ConfigError: SECRET_WEAK. The value is not in the message.
    """
    problem = secret_weakness(value)
    if problem is not None:
        raise ConfigError(
            "SECRET_WEAK",
            f"{location}: {variable} {problem}.",
            hint=f"Set {variable} to a random value: `make secrets` makes those of the containers, "
            "`openssl rand -base64 33` any other.",
        )


def check_secrets(
    declared: BaseModel, file: Path, *, environment: str, variables: Mapping[str, str] = os.environ
) -> None:
    """Refuse a declaration whose secrets are blank or well known, unless the environment is `local`.

    A variable that is not set is none of this check's business: whatever needs it says so, and not every process does.

    Raises:
        ConfigError: SECRET_WEAK with file, key and variable.
    """
    if environment == LOCAL:
        return
    for key, reference in find_secrets(declared):
        if reference.name in variables:
            reject_weak(variables[reference.name], location=f"{file}: {key}", variable=reference.name)


def find_secrets(declared: object) -> Iterator[tuple[str, Reference]]:
    """Every reference to a secret below a declaration, by the keys that lead to it."""
    return ((key, reference) for key, reference in find_references(declared) if key.rpartition(".")[2] in _SECRET_KEYS)
