"""Found by PySpark, which imports modules named pyspark_* and registers their DefaultSource: `format("s3-sqs")`."""

from __future__ import annotations

from deltaworks.sources.spark_formats.data_sources import S3SqsDataSource as DefaultSource

__all__ = ["DefaultSource"]
