"""The console of one process: pages over what a host gives it, made by threads of its own or by a process apart."""

from __future__ import annotations

from typing import Protocol

import anyio
from fastapi import Request, Response

from deltaworks.console.catalog_cache import CatalogCache
from deltaworks.console.look import Look
from deltaworks.console.page_maker import PageMaker, PlainRequest, Surroundings
from deltaworks.console.pages.base import Page
from deltaworks.console.seams import Acts, People, Person, Records

_THREADS = 4


class Elsewhere(Protocol):
    """Makes pages apart from this process."""

    def make(self, page: Page, request: PlainRequest, person: Person, around: Surroundings) -> Response | None:
        """The page; None where it is to be made here.

        Raises:
            PageMissingError: there is no such page that they may see.
        """


class Console:
    """The console of one process: its pages over what a host gives it.

    Args:
        elsewhere: makes the pages, where that is; whatever it does not make is made here.
    """

    def __init__(
        self,
        *,
        people: People,
        acts: Acts,
        records: Records,
        catalog: CatalogCache,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.people = people
        self.acts = acts
        self._maker = PageMaker(records=records, catalog=catalog)
        self._elsewhere = elsewhere
        self._limiter: anyio.CapacityLimiter | None = None

    @property
    def limiter(self) -> anyio.CapacityLimiter:
        """The turn of the console's threads. It belongs to the event loop that is running."""
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_THREADS)
        return self._limiter

    def look(self, request: PlainRequest, person: Person) -> Look:
        """One look, by a thread of the console's."""
        return self._maker.look(request, person, self._around(request, person))

    def answer(self, page: Page, request: PlainRequest, person: Person) -> Response:
        """A page for a person, or word that they have its newest already.

        Raises:
            PageMissingError: there is no such page that they may see.
        """
        around = self._around(request, person)
        if self._elsewhere is not None:
            made = self._elsewhere.make(page, request, person, around)
            if made is not None:
                return made
        return self._maker.make(page, request, person, around)

    def plain(self, request: Request) -> PlainRequest:
        """What a thread is given of a request."""
        root = str(request.scope.get("root_path", ""))
        return PlainRequest(
            root=root,
            path=request.url.path.removeprefix(root) or "/",
            values=dict(request.path_params),
            query=dict(request.query_params),
            known_tag=request.headers.get("if-none-match", ""),
            airflow=self.acts.airflow_address(request),
            packs="gzip" in request.headers.get("accept-encoding", ""),
        )

    def _around(self, request: PlainRequest, person: Person) -> Surroundings:
        return Surroundings(
            paused=self.acts.paused(),
            acts_missing=self.acts.unavailable(),
            questions=tuple(one for one in self.acts.questions(request.airflow) if person.may_read(one.dag_id)),
        )
