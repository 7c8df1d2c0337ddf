"""Judges gold tables by when they were last found to be up to date: one nobody builds answers with old figures."""

from __future__ import annotations

from datetime import datetime

from deltaworks.airflow.job_alerts import noted_at
from deltaworks.alerts import raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.health.limits import duration
from deltaworks.control.objects import ObjectStore
from deltaworks.specs.catalog import Catalog


def tell_stale(objects: ObjectStore, catalog: Catalog, *, now: datetime) -> list[str]:
    """Raise and resolve GOLD_STALE of every gold table that declares `max_age_minutes`; those that are too old."""
    stale = []
    for pipeline, spec in catalog.pipelines.items():
        for table in spec.gold.tables:
            most = table.checks.max_age_minutes
            if most is None:
                continue
            subject = f"{pipeline}.{table.name}"
            age = (now - noted_at(objects, paths.gold_state(pipeline, table.name), now=now)).total_seconds()
            if age <= 60 * most:
                resolve_alert(objects, cause="GOLD_STALE", subject=subject, summary="It is up to date.", now=now)
                continue
            stale.append(subject)
            raise_alert(
                objects,
                cause="GOLD_STALE",
                subject=subject,
                summary=f"{subject} was last found to be up to date {duration(age)} ago; it may be {most:g} min.",
                detail={"age_seconds": round(age), "max_age_minutes": most},
                now=now,
            )
    return stale
