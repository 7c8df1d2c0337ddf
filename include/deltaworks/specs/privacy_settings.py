"""Privacy settings of an environment: key service, vault storage and job schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from deltaworks.specs.base import Spec, TextOrReference
from deltaworks.specs.storage import AwsSpec, StorageSpec


class KeyringSpec(Spec):
    """Keys in files of a local folder, readable only by its owner. For single machines and trials."""

    kind: Literal["keyring"]
    folder: TextOrReference = Field(description="created with the first key; mode 0700, files 0600")


class KmsSpec(AwsSpec):
    """An AWS KMS key, by id, ARN or alias."""

    kind: Literal["kms"]
    key_id: TextOrReference
    pending_days: int = Field(default=7, ge=7, le=30, description="waiting period of KMS before a key is destroyed")


KeyServiceSpec = Annotated[KeyringSpec | KmsSpec, Field(discriminator="kind")]


class PrivacySettings(Spec):
    """The key service and the storage of the vault.

    The vault needs a bucket of its own, without versioning and replication.
    """

    keys: KeyServiceSpec
    vault: StorageSpec


@dataclass(frozen=True, slots=True)
class VaultSchedule:
    """Schedule and time limit of a vault job, the same for Airflow and for Kubernetes CronJobs."""

    cron: str
    hours: int


#: Schedules by operation. Missed runs are not caught up, because the next run processes everything pending.
VAULT_SCHEDULES: Final[Mapping[str, VaultSchedule]] = {
    "ingest_vault": VaultSchedule("*/5 * * * *", hours=1),
    # Most runs have nothing to do: keys rotate monthly, daily tokens expire daily.
    "maintain_vault": VaultSchedule("25 3 * * *", hours=6),
    "erase": VaultSchedule("40 * * * *", hours=6),
}
