"""Found by PySpark, which imports modules named pyspark_* and registers their DefaultSource: `format("kinesis")`."""

from __future__ import annotations

from deltaworks.sources.kinesis.data_source import KinesisDataSource as DefaultSource

__all__ = ["DefaultSource"]
