"""Checks that a storage is suitable as a vault: separate from the lake, and without versions or replication.

A versioned or replicated bucket would still contain a destroyed key. Everything that opens the vault checks this first.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlparse

from deltaworks.errors import ConfigError, TransientError
from deltaworks.specs.base import resolve_text
from deltaworks.specs.storage import StorageSpec

#: Error codes of stores that do not support the request.
_UNSUPPORTED_CODES = frozenset({"NotImplemented", "501", "MethodNotAllowed", "405", "XNotImplemented"})
#: Suspended versioning keeps existing versions.
_VERSIONED_STATES = ("Enabled", "Suspended")
_NO_REPLICATION_CODES = frozenset({"ReplicationConfigurationNotFoundError", "ReplicationConfigurationNotFound"})


def check_isolation(vault: StorageSpec, *others: StorageSpec) -> None:
    """Rejects a storage that is unsuitable as a vault.

    Args:
        others: storages that must not contain the vault: the lake and the landing storage.

    Raises:
        ConfigError: VAULT_NOT_ISOLATED; VAULT_BUCKET_VERSIONED, it is versioned or replicated, or that is unknown.
        TransientError: STORAGE_UNREACHABLE.
    """
    for other in others:
        if _overlaps(vault, other):
            raise ConfigError(
                "VAULT_NOT_ISOLATED", f"The vault {vault.root} overlaps with {other.root}, which other jobs can read."
            )
    if vault.scheme == "s3":
        _check_bucket(vault)


def _overlaps(vault: StorageSpec, other: StorageSpec) -> bool:
    if vault.scheme != other.scheme:
        return False
    if vault.scheme == "file":
        return _is_within(vault.prefix, other.prefix) or _is_within(other.prefix, vault.prefix)
    # Permissions, versioning and replication are set per bucket, so a prefix in the lake's bucket is not isolated.
    return vault.bucket == other.bucket and _server(vault) == _server(other)


def _is_within(folder: str, parent: str) -> bool:
    return f"{folder}/".startswith(f"{parent}/")


def _server(storage: StorageSpec) -> str:
    return urlparse(resolve_text(storage.endpoint)).netloc if storage.endpoint is not None else ""


def _check_bucket(vault: StorageSpec) -> None:
    from botocore.config import Config

    from deltaworks.control.aws_sessions import aws_session

    config = Config(s3={"addressing_style": "path" if vault.path_style else "auto"}, connect_timeout=5, read_timeout=20)
    client: Any = aws_session().client("s3", config=config, **vault.boto3_options())
    versions = _query_bucket(
        vault, "versioning", lambda: client.get_bucket_versioning(Bucket=vault.bucket), _UNSUPPORTED_CODES
    )
    if versions is not None and versions.get("Status") in _VERSIONED_STATES:
        raise _keeps_versions_error(vault, f"versioning is {versions['Status'].lower()}")
    copies = _query_bucket(
        vault,
        "replication",
        lambda: client.get_bucket_replication(Bucket=vault.bucket),
        _UNSUPPORTED_CODES | _NO_REPLICATION_CODES,
    )
    if copies is not None and copies.get("ReplicationConfiguration", {}).get("Rules"):
        raise _keeps_versions_error(vault, "replication is enabled")


def _query_bucket(vault: StorageSpec, setting: str, query: Any, unsupported: frozenset[str]) -> dict[str, Any] | None:
    """Returns a setting of the bucket; None if the store does not support the request."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer: dict[str, Any] = query()
        return answer
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
        if {code, status} & unsupported:
            return None
        if code in ("AccessDenied", "403"):
            raise ConfigError(
                "VAULT_BUCKET_VERSIONED",
                f"Whether {vault.root} keeps old versions is unknown: reading its {setting} is denied.",
                hint="Allow s3:GetBucketVersioning and s3:GetReplicationConfiguration on the vault's bucket.",
            ) from error
        raise _unreachable_error(vault, error) from error
    except BotoCoreError as error:
        raise _unreachable_error(vault, error) from error


def _keeps_versions_error(vault: StorageSpec, why: str) -> ConfigError:
    return ConfigError(
        "VAULT_BUCKET_VERSIONED", f"{vault.root} cannot be the vault: {why}, so a destroyed key would still exist."
    )


def _unreachable_error(vault: StorageSpec, error: Exception) -> TransientError:
    return TransientError(
        "STORAGE_UNREACHABLE",
        f"The versioning of {vault.root} cannot be checked: {error}.",
        hint="Check the vault's endpoint, keys and permissions in include/environments.",
    )
