"""All pages, in the order of the navigation. A page is a module, a template and a line here."""

from __future__ import annotations

from typing import Final

from deltaworks.console.pages import alerts, batch, costs, erasures, gold, lineage, mutations, nights, overview, quarantine, stream, table, tables
from deltaworks.console.pages import table_read_pages
from deltaworks.console.pages import dag_page
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
    lineage.PAGE,
    costs.PAGE,
    *mutations.PAGES,
    *erasures.PAGES,
    *table_read_pages.PAGES,
)
