"""Raises an alert if a batch joined too many ids into one entity, which a wrong request does: one empty or default
`new_id` joins strangers.

The size of an entity is the number of ids whose rows end at the same id, or were deleted by the same request. It is
computed from the resolved intervals by one aggregation. The connected components of `deltaworks.mutations.entities`
would take several joins per batch, and connect entities that used an id one after the other.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaworks.alerts.raising import open_subjects, raise_alert, resolve_alert
from deltaworks.control.objects import ObjectStore
from deltaworks.control.summaries.base import truncate
from deltaworks.mutations.bounds import mutable_tables, mutations_spec
from deltaworks.mutations.local_resolve import Interval
from deltaworks.specs.pipeline import PipelineSpec

log = logging.getLogger(__name__)
ENTITY_TOO_LARGE = "ENTITY_TOO_LARGE"
#: Maximum number of organisations to raise an alert for in one batch, those with the largest entities first.
MAX_ALERTS = 20
_MAX_ORGANISATIONS = 10_000
_ENTITY = ("org_id", "final_id", "deleted_at")


@dataclass(frozen=True, slots=True)
class LargestEntity:
    """The largest entity of an organisation: `ids` different ids end at `final_id`."""

    organisation: str
    final_id: str
    ids: int
    example_id: str


class ResolvedBatch(Protocol):
    """A batch whose requests are resolved, by either engine."""

    @property
    def request_count(self) -> int:
        """The number of requests of the organisations in scope."""

    def large_entities(self, *, limit: int) -> list[LargestEntity]:
        """Returns the largest entity of every organisation that has one of more than `limit` ids."""

    def organisations_in_scope(self, organisations: set[str]) -> set[str]:
        """Returns those of the organisations that the batch covers."""


def check_entity_sizes(objects: ObjectStore, spec: PipelineSpec, batch: ResolvedBatch) -> None:
    """Raises and resolves the alerts of the organisations of a batch. Idempotent; errors are logged."""
    try:
        limit = mutations_spec(spec).alert_above_ids
        # An id is moved by a request of its own, so fewer requests cannot join more ids.
        entities = batch.large_entities(limit=limit) if batch.request_count > limit else []
        opened = _open_organisations(objects, spec)
        resolved = batch.organisations_in_scope(opened) - {entity.organisation for entity in entities}
        update_alerts(objects, spec, entities, resolved=resolved)
    except Exception as error:  # the rows are correct; a batch must not fail because of its alert
        log.warning("pipeline=%s the sizes of entities were not checked: %s", spec.pipeline, error)


def large_entities_locally(intervals: Iterable[Interval], *, limit: int) -> list[LargestEntity]:
    """Returns the same as `large_entities`, for intervals in this process."""
    ids: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    for interval in intervals:
        if interval.hops > 0:
            deleted_at = (interval.last_time or 0) if interval.deleted else 0
            ids[interval.org_id, interval.final_id, deleted_at].add(interval.id)
    largest: dict[str, tuple[int, str, str]] = {}
    for (organisation, final_id, _), members in ids.items():
        if len(members) > limit:
            size = (len(members), final_id, min(members))
            largest[organisation] = max(largest.get(organisation, size), size)
    entities = [LargestEntity(organisation, name, count, one) for organisation, (count, name, one) in largest.items()]
    return sorted(entities, key=lambda entity: (-entity.ids, entity.organisation))[:_MAX_ORGANISATIONS]


def large_entities(intervals: DataFrame, *, limit: int) -> list[LargestEntity]:
    """Returns the largest entity of every organisation that has one of more than `limit` ids, the largest first.

    Costs one aggregation if there is none. Ids are counted only where the number of intervals, an upper bound, is over
    the limit.
    """
    deleted_at = F.when(F.col("deleted"), F.unix_micros("last_time")).otherwise(F.lit(0))
    moved = intervals.where(F.col("hops") > 0).withColumn("deleted_at", deleted_at)
    counted = moved.groupBy(*_ENTITY).count()
    if (counted.agg(F.max("count")).collect()[0][0] or 0) <= limit:
        return []
    candidates = counted.where(F.col("count") > limit).drop("count")
    sizes = (
        moved.join(candidates, list(_ENTITY), "left_semi")
        .groupBy(*_ENTITY)
        .agg(F.count_distinct("id").alias("ids"), F.min("id").alias("example_id"))
        .where(F.col("ids") > limit)
    )
    largest = sizes.groupBy("org_id").agg(F.max(F.struct("ids", "final_id", "example_id")).alias("largest"))
    rows = largest.orderBy(F.desc("largest.ids"), "org_id").limit(_MAX_ORGANISATIONS).collect()
    return [
        LargestEntity(row["org_id"], row["largest"]["final_id"], row["largest"]["ids"], row["largest"]["example_id"])
        for row in rows
    ]


def update_alerts(
    objects: ObjectStore, spec: PipelineSpec, entities: Collection[LargestEntity], *, resolved: Collection[str]
) -> None:
    """Raises the alerts of the first `MAX_ALERTS` organisations of `entities`, and resolves those of `resolved`."""
    mutations = mutations_spec(spec)
    for organisation in sorted(resolved):
        summary = f"{_subject(spec, organisation)}: no id stands for more than {mutations.alert_above_ids:,} ids."
        resolve_alert(objects, cause=ENTITY_TOO_LARGE, subject=_subject(spec, organisation), summary=summary)
    for entity in list(entities)[:MAX_ALERTS]:
        subject = _subject(spec, entity.organisation)
        final_id, example_id = truncate(entity.final_id, 80), truncate(entity.example_id, 80)
        raise_alert(
            objects,
            cause=ENTITY_TOO_LARGE,
            subject=subject,
            summary=f"{subject}: requests joined {entity.ids:,} ids into {final_id!r}, for example {example_id!r}; "
            f"more than {mutations.alert_above_ids:,} are usually a wrong request.",
            detail={
                "organisation": entity.organisation,
                "tables": [table.name for table in mutable_tables(spec)],
                "final_id": entity.final_id,
                "ids": entity.ids,
                "example_id": entity.example_id,
            },
        )


def _open_organisations(objects: ObjectStore, spec: PipelineSpec) -> set[str]:
    """Returns the organisations of the pipeline with an open alert."""
    prefix = _subject(spec, "")
    subjects = open_subjects(objects, ENTITY_TOO_LARGE)
    return {subject.removeprefix(prefix) for subject in subjects if subject.startswith(prefix)}


def _subject(spec: PipelineSpec, organisation: str) -> str:
    return f"{spec.pipeline}.{mutations_spec(spec).requests}/{organisation}"
