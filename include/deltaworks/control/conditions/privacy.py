"""Conditions of personal data: keys, what is sealed, and the list of who is suppressed."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition, conditions_of
from deltaworks.errors import ConfigError, ContractError, TransientError

PRIVACY: Final = (
    *conditions_of(
        ConfigError,
        Condition(
            "KEY_SERVICE_UNDECLARED",
            "a pipeline has personal data, and the environment no key service and vault for it",
            "declare `privacy` in include/environments",
            runbook="explanation/personal-data.md#keys",
        ),
        Condition(
            "REDACTION_KEYS_MISSING",
            "events with personal data are to be read without the keys by which it is stripped",
            "declare `privacy` in the environment, and give the process its key service",
            runbook="explanation/personal-data.md#keys",
        ),
        Condition(
            "KEY_SERVICE_REFUSED",
            "the key service refuses this role, or has no such key",
            "check `privacy.keys` of the environment; grant the role the key for the context that is given",
            runbook="explanation/personal-data.md#keys",
        ),
        Condition(
            "KEYRING_UNUSABLE",
            "the folder of a keyring can be read by others, lacks a key, or cannot be written",
            "give it to the user of the process alone, or name another folder",
            runbook="explanation/personal-data.md#keys",
        ),
    ),
    *conditions_of(
        ContractError,
        Condition(
            "KEY_CONTEXT_DIFFERS",
            "a wrapped key was wrapped for another namespace or purpose, or is damaged",
            "put back what was written there; nothing opens it for another use",
            runbook="explanation/personal-data.md#keys",
        ),
        Condition(
            "KEY_DESTROYED",
            "a key was destroyed, and what it had wrapped with it",
            "nothing: that is what it was destroyed for",
            runbook="explanation/personal-data.md#keys",
        ),
        Condition(
            "STORED_KEY_UNREADABLE",
            "an object that holds a wrapped key is torn or of another release",
            "put it back as it was; with another key tokens would not join",
            runbook="explanation/personal-data.md#keys",
        ),
        Condition(
            "SEALED_UNREADABLE",
            "a sealed file or value is damaged, was moved, or was sealed by another keyring",
            "put it back as it was written",
            runbook="explanation/personal-data.md#what-is-sealed",
        ),
        Condition(
            "SUPPRESSION_UNREADABLE",
            "a record of the list of erased subjects cannot be read, and nothing is read without the whole list",
            "put the object back, or run the release that wrote it",
            runbook="explanation/personal-data.md#suppression",
        ),
    ),
    *conditions_of(
        TransientError,
        Condition(
            "KEY_SERVICE_UNREACHABLE",
            "the key service does not answer; nothing is kept in plain meanwhile",
            "see whether it can be reached; it is tried again",
            runbook="explanation/personal-data.md#keys",
        ),
    ),
)
