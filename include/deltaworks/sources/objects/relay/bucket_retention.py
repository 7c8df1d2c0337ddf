"""For how long a bucket keeps what lands in it, by its lifecycle rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from deltaworks.sources.objects.relay.bucket_client import bucket_client
from deltaworks.specs.storage import StorageSpec

_DAY_SECONDS = 86_400.0
_NO_RULES = "NoSuchLifecycleConfiguration"


def bucket_retention_seconds(storage: StorageSpec, bucket: str, prefix: str) -> float | None:
    """The seconds after which the first rule that concerns the prefix deletes an object; None where none does.

    Asked once and not waited for long: a stream that is watched has to hear that it is to stop. A folder has no rules.

    Raises:
        botocore.exceptions.BotoCoreError, ClientError: the bucket may not be asked, or does not know of rules.
    """
    if storage.scheme == "file":
        return None
    try:
        client = bucket_client(storage, read_seconds=5, attempts=1)
        answer = client.get_bucket_lifecycle_configuration(Bucket=bucket)
    except ClientError as error:
        if error.response["Error"]["Code"] == _NO_RULES:
            return None
        raise
    return shortest_expiry_seconds(answer["Rules"], prefix)


def shortest_expiry_seconds(rules: Iterable[Mapping[str, Any]], prefix: str) -> float | None:
    """Of rules as S3 tells them. One that is narrowed by tags or sizes is taken to concern every object."""
    days = [
        rule["Expiration"]["Days"]
        for rule in rules
        if rule["Status"] == "Enabled" and "Days" in rule.get("Expiration", {}) and _concerns(rule, prefix)
    ]
    return min(days) * _DAY_SECONDS if days else None


def _concerns(rule: Mapping[str, Any], prefix: str) -> bool:
    narrowed = rule.get("Filter", {})
    of_rule = str(rule.get("Prefix") or narrowed.get("Prefix") or narrowed.get("And", {}).get("Prefix") or "")
    return prefix.startswith(of_rule) or of_rule.startswith(prefix)
