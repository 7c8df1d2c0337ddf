"""Reports of what runs beside the streams and relays of a catalog: its collectors, and the vaults of its namespaces."""

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
    """A report for every collector that has ever run, then one for every vault. Raises nothing: what cannot be read is
    a verdict."""
    now = now or utc_now()
    collectors = collector_reports(read_collectors(catalog, objects), previous=previous, now=now)
    return collectors + vault_reports(catalog, objects, previous=previous, now=now)
