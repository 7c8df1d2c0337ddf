"""Records of the vault's job in the lake, for processes that must not open the vault."""

from __future__ import annotations

from typing import ClassVar

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordStore

_KIND = RecordKind(
    noun="record of the vault",
    unreadable_condition="VAULT_RECORD_UNREADABLE",
    hint="Run the release that the vault's job runs, or a later one.",
)


class VaultHeartbeat(Record):
    """The state of a namespace's vault. Times are ISO 8601 in UTC; empty if unknown.

    Args:
        caught_up_at: start of the last run that ingested all readable files.
        suppression: number of the suppression list at the start of that run.
        waiting: encrypted files that the last run left.
        unreadable: some of the files that cannot be decrypted; they stay in place.
        failure_condition: condition of the last failed run, since `failing_since`.
        epoch: number of the current key epoch; epoch_at: its start.
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


def read_vault_heartbeat(objects: ObjectStore, namespace: str) -> VaultHeartbeat | None:
    """Reads the heartbeat of a namespace; None if its job has never run.

    Raises:
        ContractError: VAULT_RECORD_UNREADABLE.
    """
    return RecordStore(objects, VaultHeartbeat).read(paths.vault_heartbeat(namespace))
