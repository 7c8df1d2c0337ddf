"""Found by PySpark, which imports modules named pyspark_* and registers their DefaultSource: `format("kinesis")`."""

from __future__ import annotations

from deltaworks.sources.spark_formats.data_sources import KinesisDataSource as DefaultSource

__all__ = ["DefaultSource"]
