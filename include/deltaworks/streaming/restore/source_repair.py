"""Reads the objects of lost batches again, through a reprocess under an id of the rollback's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from deltaworks.control.rollbacks import Rollback
from deltaworks.errors import TransientError
from deltaworks.specs.catalog import Catalog
from deltaworks.streaming.parsing.reasons import QUARANTINE
from deltaworks.streaming.reprocess.plan import ReprocessRequest
from deltaworks.streaming.reprocess.run import Reprocess
from deltaworks.streaming.reprocess.selection import Selection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def reprocess_id_of(done: Rollback) -> str:
    """The id of the reprocess that ends a rollback; the same for everybody who goes on with it."""
    return f"rollback_{done.ordinal}"


def read_lost_again(catalog: Catalog, done: Rollback, *, spark: Callable[[], SparkSession] | None) -> None:
    """Have the rows of the lost batches again, as their objects and the declaration of now say. Idempotent.

    A reprocess takes the rows of an object out before it puts them in, so what is there already is not doubled.

    Raises:
        TransientError: SPARK_ABSENT.
        What a reprocess raises.
    """
    if not done.batches:
        return
    if spark is None:
        raise TransientError("SPARK_ABSENT", "Objects are read again by Spark, which does not run here.")
    request = ReprocessRequest(
        selection=Selection(batches=(min(done.batches), max(done.batches))),
        tables=() if done.table == QUARANTINE else (done.table,),
    )
    Reprocess(spark(), catalog, done.pipeline, of_rollback=True).run(reprocess_id_of(done), request)
