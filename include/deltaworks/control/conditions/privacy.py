"""Conditions of personal data: keys, encrypted files and the suppression list."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition, conditions_of
from deltaworks.errors import ConfigError, ContractError, TransientError

PRIVACY: Final = (
    *conditions_of(
        ConfigError,
        Condition(
            "KEY_SERVICE_UNDECLARED",
            "a pipeline has personal data, but no key service and vault are declared",
            "declare `privacy` in include/environments",
            runbook="explanation/personal-data.md#keys",
        ),
        Condition(
            "REDACTION_KEYS_MISSING",
            "the redaction keys for personal data are missing",
            "declare `privacy`, and grant the process its key service",
            runbook="explanation/personal-data.md#keys",
        ),
        Condition(
            "KEY_SERVICE_REFUSED",
            "the key service rejects this role, or has no such key",
            "check `privacy.keys`; grant the role the key for the named context",
            runbook="explanation/personal-data.md#keys",
        ),
        Condition(
            "KEYRING_UNUSABLE",
            "a keyring folder is readable by others, lacks a key, or cannot be written",
            "restrict it to the process's user, or use another folder",
            runbook="explanation/personal-data.md#keys",
        ),
    ),
    *conditions_of(
        ContractError,
        Condition(
            "KEY_CONTEXT_DIFFERS",
            "a wrapped key belongs to another namespace or purpose, or is damaged",
            "restore the original; keys are bound to their purpose",
            runbook="explanation/personal-data.md#keys",
        ),
        Condition(
            "KEY_DESTROYED",
            "a key was destroyed, so its data cannot be decrypted",
            "nothing: this is intended",
            runbook="explanation/personal-data.md#keys",
        ),
        Condition(
            "STORED_KEY_UNREADABLE",
            "a wrapped key is damaged or of another release",
            "restore it; with another key, tokens would not match",
            runbook="explanation/personal-data.md#keys",
        ),
        Condition(
            "SEALED_UNREADABLE",
            "an encrypted file or value is damaged, moved, or of another keyring",
            "restore the original",
            runbook="explanation/personal-data.md#what-is-sealed",
        ),
        Condition(
            "SUPPRESSION_UNREADABLE",
            "a record of the suppression list cannot be read, so input is not read",
            "restore the object, or run the release that wrote it",
            runbook="explanation/personal-data.md#suppression",
        ),
    ),
    *conditions_of(
        TransientError,
        Condition(
            "KEY_SERVICE_UNREACHABLE",
            "the key service does not answer; no plain-text data is stored meanwhile",
            "check the network; it is retried",
            runbook="explanation/personal-data.md#keys",
        ),
    ),
)
