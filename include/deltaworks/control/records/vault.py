"""What the vault's job puts on record in the lake, where those may look who must not open the vault."""

from __future__ import annotations

from typing import ClassVar

from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordStore
from deltaworks.privacy.paths import privacy_control

_KIND = RecordKind(
    noun="record of the vault",
    unreadable_condition="VAULT_RECORD_UNREADABLE",
    hint="Run the release that the vault's job runs, or a later one.",
)


class VaultHeartbeat(Record):
    """How the vault of a namespace is. Times are ISO 8601 in UTC; empty where it never was.

    Args:
        clean_at: when a run began that took in all that could be opened.
        suppression: the number of the suppression list with which that run began.
        waiting: sealed files that the last run left.
        unreadable: some of those that cannot be opened; they stay where they are.
        trouble: the condition on which the last run failed, since `trouble_since`.
        epoch: the number of the epoch that wraps, and when it was begun.
    """

    kind: ClassVar[RecordKind] = _KIND

    namespace: str
    written_at: str
    caught_up_at: str = ""
    suppression: int = 0
    waiting: int = 0
    unreadable: tuple[str, ...] = ()
    failure_condition: str = ""
    failing_since: str = ""
    epoch: int = 0
    epoch_at: str = ""


def vault_heartbeat_key(namespace: str) -> str:
    """The object of a namespace's beat."""
    return privacy_control(namespace, "vault.json")


def read_vault_heartbeat(objects: ObjectStore, namespace: str) -> VaultHeartbeat | None:
    """The beat of a namespace; None where its job has never run.

    Raises:
        ContractError: VAULT_RECORD_UNREADABLE.
    """
    return RecordStore(objects, VaultHeartbeat).read(vault_heartbeat_key(namespace))
