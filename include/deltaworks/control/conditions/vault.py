"""Conditions of the vault of personal data: where it lies, its keys, its cells, and who opens it."""

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
            "use the nearest one that is given",
        ),
        Condition(
            "VAULT_NOT_ISOLATED",
            "the vault lies in the storage of the lake or of the landing objects, which others read",
            "give `privacy.vault` of the environment a bucket of its own",
            runbook="how-to/run-the-vault.md#where-it-lies",
        ),
        Condition(
            "VAULT_BUCKET_VERSIONED",
            "the vault's bucket is versioned or replicated, or does not say: destroyed keys would still be there",
            "make a new bucket without versioning, replication and backup; a suspended one keeps what it had",
            runbook="how-to/run-the-vault.md#where-it-lies",
        ),
        Condition(
            "REVEAL_REFUSED",
            "a reveal names no token or no reason, or was begun where its values would land in a log",
            "name tokens and a reason, at a terminal",
            runbook="how-to/run-the-vault.md#reveal",
        ),
    ),
    *conditions_of(
        ContractError,
        Condition(
            "VAULT_KEYS_UNREADABLE",
            "a page of subjects' keys is torn, was changed, or is of another release",
            "nothing is opened by it; see who writes to the vault",
            runbook="how-to/run-the-vault.md#keys",
        ),
        Condition(
            "VAULT_EPOCH_DESTROYED",
            "a key page is older than the last rotation: what wrapped it was destroyed",
            "nothing where somebody put an old page back; else put the key store back",
            runbook="how-to/run-the-vault.md#rotation",
        ),
        Condition(
            "VAULT_KEY_REMAINS",
            "a key that was removed is there when it is read back",
            "see what restores the vault's objects, then run it again",
            runbook="how-to/run-the-vault.md#keys",
        ),
        Condition(
            "VAULT_CELL_UNREADABLE",
            "a sealed value was changed, or belongs to another row or key",
            "nothing of it is shown; see who writes to the vault's tables",
            runbook="how-to/run-the-vault.md#reveal",
        ),
        Condition(
            "VAULT_RECORD_UNREADABLE",
            "what the vault's job put on record is of another release, or torn",
            "run the release that the job runs, or a later one",
        ),
    ),
    *conditions_of(
        ConcurrencyError,
        Condition("VAULT_BUSY", "another run works on the vault of a namespace", "nothing: the next run continues"),
        Condition(
            "VAULT_KEYS_CONTENDED",
            "a page of keys was replaced by others at each of many attempts",
            "run it again",
        ),
    ),
)
