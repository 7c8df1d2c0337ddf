"""All pages, in the order of the navigation. A page is a module, a template and a line here."""

from __future__ import annotations

from typing import Final

from deltaworks.console.pages import (
    alerts,
    batch,
    cold_pages,
    costs,
    erasures,
    gold,
    lineage,
    mutations,
    nights,
    of_dag,
    overview,
    quarantine,
    stream,
    table,
    tables,
)
from deltaworks.console.pages.base import Page

PAGES: Final[tuple[Page, ...]] = (
    overview.PAGE,
    stream.PAGE,
    batch.PAGE,
    of_dag.PAGE,
    tables.PAGE,
    table.PAGE,
    *quarantine.PAGES,
    alerts.PAGE,
    *nights.PAGES,
    *gold.PAGES,
    lineage.PAGE,
    costs.PAGE,
    *mutations.PAGES,
    *erasures.PAGES,
    *cold_pages.PAGES,
)
