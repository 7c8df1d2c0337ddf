"""Results of Python workers reach the driver as bytes and JSON, and run nothing there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.tables.driver_collect import collect_bytes, collect_json


def hostile_task(mark: str) -> Callable[[Iterable[int]], Iterator[Any]]:
    # Defined here, so that the class travels with the function.
    def task(_: Iterable[int]) -> Iterator[Any]:
        class Hostile:
            def __reduce__(self) -> tuple[Any, ...]:
                return os.mkdir, (mark,)

        yield Hostile()

    return task


def test_bytes_and_json_of_workers_are_collected_in_order(spark: SparkSession) -> None:
    numbers = spark.sparkContext.parallelize(range(5), 3)

    assert collect_bytes(numbers.map(lambda number: bytes([number]) * 2)) == [
        bytes([number]) * 2 for number in range(5)
    ]
    assert collect_json(numbers.map(lambda number: {"n": number, "t": (number, None)}))[3] == {"n": 3, "t": [3, None]}
    assert collect_json(numbers.map(lambda _: "\ud800\n"))[0] == "\ud800\n"
    assert collect_json(numbers.filter(lambda number: number > 9)) == []


@pytest.mark.parametrize("collect", [collect_bytes, collect_json])
def test_what_a_worker_pickles_is_not_run_in_the_driver(
    spark: SparkSession, tmp_path: Path, collect: Callable[[Any], Any]
) -> None:
    mark = tmp_path / "ran"
    rows = spark.sparkContext.parallelize([0], 1)

    with pytest.raises(Exception, match=r"TypeError|bytes-like|JSON serializable"):
        collect(rows.mapPartitions(hostile_task(str(mark))))

    assert not mark.exists()
    rows.mapPartitions(hostile_task(str(mark))).collect()
    assert mark.exists(), "Spark's own collect runs it"
