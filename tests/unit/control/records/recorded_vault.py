"""Expected records of the vault."""

from __future__ import annotations

from deltaworks.control.records.erasure import VaultHeartbeat
from deltaworks.control.records.store import UnversionedRecord
from deltaworks.privacy.vault.key_pages import KeyPage, WrappedKey

AT = "2026-01-02T03:04:05.678+00:00"
VAULT: dict[str, UnversionedRecord] = {
    "vault_beat": VaultHeartbeat(
        namespace="players",
        written_at=AT,
        caught_up_at=AT,
        suppression=3,
        waiting=2,
        unreadable=("sealed/edge/1-2.dws: SEALED_UNREADABLE",),
        failure_condition="KEY_SERVICE_UNREACHABLE",
        failing_since=AT,
        epoch=4,
        epoch_at=AT,
    ),
    "key_page": KeyPage(
        namespace="players",
        page="0af",
        keys={"p1_abcdefghijklmnopqrstuvwxyz": WrappedKey(epoch=4, version=40_961, wrapped="bm9uY2Vub25jZWtleQ==")},
    ),
}
