"""Conditions of erasures: of requests, of taking rows out, and of certificates."""

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
            "give one of the kinds that its pipelines declare",
            runbook="how-to/erase-a-person.md#receive-a-request",
        ),
        Condition(
            "ERASURE_VALUE_INVALID",
            "the identifier is empty, or no token where one is given",
            "give it with `--value`",
            runbook="how-to/erase-a-person.md#receive-a-request",
        ),
        Condition(
            "ERASURE_LANDING_REFUSED",
            "an erasure may not read, put or delete landed objects, so that they keep the person's events",
            "grant what the message names; or `erase: {landing: expire}`, see [erasing](how-to/erase-a-person.md#landed-objects)",
        ),
        Condition(
            "ERASURE_ENDED",
            "the request is certified or refused, and nothing of it can be changed",
            "receive a new one, if the person asks again",
        ),
        Condition(
            "ERASURE_STARTED",
            "the request is suppressed, and can be refused no more",
            "let it end",
            runbook="how-to/erase-a-person.md#refuse-and-extend",
        ),
        Condition(
            "ERASURE_REASON_MISSING",
            "a refusal or an extension has no reason",
            "give `--reason`",
            runbook="how-to/erase-a-person.md#refuse-and-extend",
        ),
        Condition(
            "ERASURE_NOT_EXTENDED",
            "a deadline moves once, and only before it has passed",
            "bring the request to its end",
            runbook="how-to/erase-a-person.md#refuse-and-extend",
        ),
        Condition(
            "ERASURE_SUBJECT_DELETED",
            "the vault no longer says whom a request is about",
            "receive it again, under the day it was received",
            runbook="how-to/erase-a-person.md#receive-a-request",
        ),
    ),
    *conditions_of(
        ContractError,
        Condition(
            "ERASURE_UNREADABLE",
            "a record of an erasure is torn or of another release",
            "put it back, or run the release that wrote it",
        ),
        Condition(
            "ERASURE_FILE_SHARED",
            "a table has a file that belongs to another table too",
            "copy the table with its rows into files of its own",
            runbook="how-to/erase-a-person.md#an-erasure-is-blocked",
        ),
        Condition(
            "ERASURE_FILE_DAMAGED",
            "a data file cannot be read, so nobody can say whose rows it has",
            "`deltaworks tables check` says how to have it again",
            runbook="how-to/erase-a-person.md#an-erasure-is-blocked",
        ),
        Condition(
            "ERASURE_MISCOUNTED",
            "rows of others would go, or rows of the person stay; nothing was committed or certified",
            "run it again; keep the file and report it, if it comes again",
            runbook="how-to/erase-a-person.md#what-a-certificate-says",
        ),
        Condition(
            "DELETION_VECTOR_UNREADABLE",
            "a deletion vector cannot be read",
            "have Spark write the file without it: `REORG TABLE … APPLY (PURGE)`",
        ),
        Condition(
            "CERTIFICATES_BROKEN",
            "a certificate was changed, or one is missing",
            "put the object back from the storage's versions",
            runbook="how-to/erase-a-person.md#what-a-certificate-says",
        ),
    ),
    *conditions_of(
        ConcurrencyError,
        Condition(
            "ERASURE_CONTENDED",
            "another process has brought the request on",
            "nothing: it is run again",
        ),
        Condition(
            "ERASURE_RUNNING",
            "another run brings the requests of the namespace on",
            "nothing: it does what this one would have done",
        ),
    ),
)
