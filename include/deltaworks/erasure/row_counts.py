"""Counts the rows and dates that an erasure would delete, by table. Read-only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deltaworks.control.records.erasure import ErasureRequest
from deltaworks.erasure.namespace import Namespace
from deltaworks.erasure.person_resolution import MutationIntervals, Person, VaultIdentities, resolve_person
from deltaworks.erasure.purge_table import TablePurger
from deltaworks.erasure.purge_window import purge_targets
from deltaworks.erasure.requests import read_person
from deltaworks.erasure.token_search import TokenSearch


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonRowCount:
    """Rows of one person in one table, with their first and last date."""

    pipeline: str
    table: str
    rows: int
    first_date: str = ""
    last_date: str = ""
    exemption_reason: str = ""

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """The count as cells: table, rows, first date, last date, and why the rows are exempt."""
        exemption = f"kept: {self.exemption_reason}" if self.exemption_reason else ""
        return f"{self.pipeline}.{self.table}", f"{self.rows:,}", self.first_date, self.last_date, exemption


def person_of_token(namespace: Namespace, token: str) -> Person:
    """Resolves a token to a person, from the current content of the vault and the mutations."""
    origins = [MutationIntervals(namespace.lake, spec) for spec in namespace.pipelines]
    return resolve_person(token, VaultIdentities(namespace.vault), origins)


def count_rows(namespace: Namespace, person: Person) -> Iterator[PersonRowCount]:
    """Yields the row count of a person for every table with rows."""
    search = {"person": TokenSearch(person.tokens)}
    for target in purge_targets(namespace):
        purger = TablePurger(
            target.lake, target.objects, target.key, pipeline=target.pipeline, table=target.table, requests=search
        )
        survey = purger.survey()
        if survey.hits:
            dates = sorted(survey.dates)
            yield PersonRowCount(
                pipeline=target.pipeline,
                table=target.table,
                rows=survey.hits,
                first_date=dates[0],
                last_date=dates[-1],
                exemption_reason=target.exemption_reason,
            )


def current_person(namespace: Namespace, request: ErasureRequest) -> Person:
    """Returns the person of an open request, as recorded, or resolved now if it is not recorded yet."""
    person = read_person(namespace, request)
    return person if request.has_reached("resolved") else person_of_token(namespace, person.subjects[0])
