"""Health reports of collectors and vaults."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from deltaworks.control.clock import utc_now
from deltaworks.control.health.collectors import collector_reports, read_collectors
from deltaworks.control.health.report import Report
from deltaworks.control.health.vaults import vault_reports
from deltaworks.control.health.verdicts import Verdict
from deltaworks.control.objects import ObjectStore
from deltaworks.specs.catalog import Catalog


def process_reports(
    catalog: Catalog,
    objects: ObjectStore,
    *,
    previous: Mapping[str, Verdict] | None = None,
    now: datetime | None = None,
) -> list[Report]:
    """Returns a report for each collector that has ever run, then for each vault. Raises nothing: unreadable records
    are a verdict.
    """
    now = now or utc_now()
    collectors = collector_reports(read_collectors(catalog, objects), previous=previous, now=now)
    return collectors + vault_reports(catalog, objects, previous=previous, now=now)
