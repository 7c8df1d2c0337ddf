"""An environment's part of personal data: which service has the keys, which storage is the vault, when its jobs run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from deltaworks.specs.base import Spec, TextOrReference
from deltaworks.specs.storage import AwsSpec, StorageSpec


class KeyringSpec(Spec):
    """Keys in files of a folder of this machine, which nobody else may read: for one machine, and for trials."""

    kind: Literal["keyring"]
    folder: TextOrReference = Field(description="made with its first key; 0700, its files 0600")


class KmsSpec(AwsSpec):
    """A key of AWS KMS, by its id, ARN or alias."""

    kind: Literal["kms"]
    key_id: TextOrReference
    pending_days: int = Field(default=7, ge=7, le=30, description="for which KMS keeps a key it is to destroy")


KeyServiceSpec = Annotated[KeyringSpec | KmsSpec, Field(discriminator="kind")]


class PrivacySettings(Spec):
    """Where the keys of personal data are, and where its vault is.

    The vault is a storage of its own: neither the lake's bucket nor one that keeps old versions or is copied.
    """

    keys: KeyServiceSpec
    vault: StorageSpec


@dataclass(frozen=True, slots=True)
class VaultSchedule:
    """When an operation on a vault runs, under Airflow and as a CronJob alike, and for how long it may."""

    cron: str
    hours: int


#: By operation. What waits is taken by the next run, so none is caught up.
VAULT_SCHEDULES: Final[Mapping[str, VaultSchedule]] = {
    "ingest_vault": VaultSchedule("*/5 * * * *", hours=1),
    # Rotation is monthly, and days end daily: a run has mostly nothing to do.
    "maintain_vault": VaultSchedule("25 3 * * *", hours=6),
    "erase": VaultSchedule("40 * * * *", hours=6),
}
