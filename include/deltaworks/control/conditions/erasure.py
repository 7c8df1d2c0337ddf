"""Conditions of erasures: requests, row deletion and certificates."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition, conditions_of
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError

ERASURE: Final = (
    *conditions_of(
        ConfigError,
        Condition(
            "ERASURE_UNKNOWN",
            "the namespace has no such request",
            "`deltaworks privacy erasures NAMESPACE` lists them",
        ),
        Condition(
            "ERASURE_KIND_UNKNOWN",
            "the namespace has no identifiers of this kind",
            "use one of the kinds that its pipelines declare",
            runbook="how-to/erase-a-person.md#receive-a-request",
        ),
        Condition(
            "ERASURE_VALUE_INVALID",
            "the identifier is empty, or not a token",
            "pass it with `--value`",
            runbook="how-to/erase-a-person.md#receive-a-request",
        ),
        Condition(
            "ERASURE_LANDING_REFUSED",
            "an erasure may not read, write or delete landed objects",
            "grant the named permission; or declare `erase: {landing: expire}`, see "
            "[erasing](how-to/erase-a-person.md#landed-objects)",
        ),
        Condition(
            "ERASURE_ENDED",
            "the request is certified or refused",
            "create a new one if the person asks again",
        ),
        Condition(
            "ERASURE_STARTED",
            "the request is suppressed, and cannot be refused",
            "let it finish",
            runbook="how-to/erase-a-person.md#refuse-and-extend",
        ),
        Condition(
            "ERASURE_REASON_MISSING",
            "a refusal or an extension has no reason",
            "pass `--reason`",
            runbook="how-to/erase-a-person.md#refuse-and-extend",
        ),
        Condition(
            "ERASURE_NOT_EXTENDED",
            "a deadline can be extended once, before it has passed",
            "complete the request",
            runbook="how-to/erase-a-person.md#refuse-and-extend",
        ),
        Condition(
            "ERASURE_SUBJECT_DELETED",
            "the vault no longer has the person of a request",
            "create it again, with its date of receipt",
            runbook="how-to/erase-a-person.md#receive-a-request",
        ),
    ),
    *conditions_of(
        ContractError,
        Condition(
            "ERASURE_UNREADABLE",
            "a record of an erasure is damaged or of another release",
            "restore it, or run the release that wrote it",
        ),
        Condition(
            "ERASURE_FILE_SHARED",
            "a table has a file that belongs to another table, too",
            "copy the table into files of its own",
            runbook="how-to/erase-a-person.md#an-erasure-is-blocked",
        ),
        Condition(
            "ERASURE_FILE_DAMAGED",
            "a data file cannot be read, so its people are unknown",
            "`deltaworks tables check` names the repair",
            runbook="how-to/erase-a-person.md#an-erasure-is-blocked",
        ),
        Condition(
            "ERASURE_MISCOUNTED",
            "rows of others would be deleted, or rows of the person remain; nothing was done",
            "run it again; if it recurs, report it",
            runbook="how-to/erase-a-person.md#what-a-certificate-says",
        ),
        Condition(
            "DELETION_VECTOR_UNREADABLE",
            "a deletion vector cannot be read",
            "rewrite the file without it: `REORG TABLE … APPLY (PURGE)`",
        ),
        Condition(
            "CERTIFICATES_BROKEN",
            "a certificate was changed or is missing",
            "restore the object from the storage's versions",
            runbook="how-to/erase-a-person.md#what-a-certificate-says",
        ),
    ),
    *conditions_of(
        ConcurrencyError,
        Condition(
            "ERASURE_CONTENDED",
            "another process advanced the request",
            "nothing: it is run again",
        ),
        Condition(
            "ERASURE_RUNNING",
            "another run advances the requests of the namespace",
            "nothing: that run does the same work",
        ),
    ),
)
