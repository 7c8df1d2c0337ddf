"""The list of all pages, in the order of the navigation. A page is a module, a template and an entry here."""

from __future__ import annotations

from typing import Final

from deltaworks.console.pages import (
    alerts,
    batch,
    costs,
    dag_page,
    dashboards,
    erasures,
    gold,
    lineage,
    mutations,
    nights,
    overview,
    quarantine,
    stream,
    table,
    table_read_pages,
    tables,
)
from deltaworks.console.pages.base import Page

PAGES: Final[tuple[Page, ...]] = (
    overview.PAGE,
    stream.PAGE,
    batch.PAGE,
    dag_page.PAGE,
    tables.PAGE,
    table.PAGE,
    *quarantine.PAGES,
    alerts.PAGE,
    *nights.PAGES,
    *gold.PAGES,
    *dashboards.PAGES,
    lineage.PAGE,
    costs.PAGE,
    *mutations.PAGES,
    *erasures.PAGES,
    *table_read_pages.PAGES,
)
