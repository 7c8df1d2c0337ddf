"""Conditions of the vault of personal data: location, keys, values and reveals."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition, conditions_of
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError

VAULT: Final = (
    *conditions_of(
        ConfigError,
        Condition(
            "NAMESPACE_UNKNOWN",
            "no pipeline declares personal data of that namespace",
            "use the suggested name",
        ),
        Condition(
            "VAULT_NOT_ISOLATED",
            "the vault shares the storage of the lake or of landing objects",
            "use a separate bucket for `privacy.vault`",
            runbook="how-to/run-the-vault.md#declare-the-vault",
        ),
        Condition(
            "VAULT_BUCKET_VERSIONED",
            "the vault's bucket is, or may be, versioned or replicated: destroyed keys would survive",
            "use a new bucket without versioning, replication and backup",
            runbook="how-to/run-the-vault.md#declare-the-vault",
        ),
        Condition(
            "REVEAL_REFUSED",
            "a reveal has no token or no reason, or its output would go to a log",
            "pass tokens and a reason, at a terminal",
            runbook="how-to/run-the-vault.md#reveal",
        ),
    ),
    *conditions_of(
        ContractError,
        Condition(
            "VAULT_KEYS_UNREADABLE",
            "a key page is damaged, changed, or of another release",
            "check who writes to the vault",
            runbook="how-to/run-the-vault.md#keys",
        ),
        Condition(
            "VAULT_EPOCH_DESTROYED",
            "a key page is older than the last rotation: its wrapping key was destroyed",
            "nothing if an old page was restored; otherwise restore the key store",
            runbook="how-to/run-the-vault.md#rotation",
        ),
        Condition(
            "VAULT_KEY_REMAINS",
            "a deleted key still exists",
            "check for a process that restores the vault's objects, then run it again",
            runbook="how-to/run-the-vault.md#keys",
        ),
        Condition(
            "VAULT_CELL_UNREADABLE",
            "an encrypted value was changed, or belongs to another row or key",
            "check who writes to the vault's tables",
            runbook="how-to/run-the-vault.md#reveal",
        ),
        Condition(
            "VAULT_RECORD_UNREADABLE",
            "the record of the vault's job is damaged or of another release",
            "run the job's release, or a later one",
        ),
    ),
    *conditions_of(
        ConcurrencyError,
        Condition("VAULT_BUSY", "another run works on the namespace's vault", "nothing: the next run continues"),
        Condition(
            "VAULT_KEYS_CONTENDED",
            "other processes kept replacing a key page",
            "run it again",
        ),
    ),
)
