"""The data source classes that Spark finds by the names `s3-sqs` and `cloudFiles`. Options and reader are imported on
demand, because every session on this PYTHONPATH imports this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class S3SqsDataSource(DataSource):
    """The streaming source `s3-sqs`; `deltaworks.sources.spark_formats.s3_sqs.options` describes its options."""

    @classmethod
    def name(cls) -> str:
        return "s3-sqs"

    def schema(self) -> StructType:
        """Called only for a query without `.schema(...)`."""
        from deltaworks.sources.spark_formats.s3_sqs.options import check_no_inference, schema_missing_error

        check_no_inference(self.options)
        raise schema_missing_error()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from deltaworks.sources.spark_formats.s3_sqs.options import parse_s3_sqs
        from deltaworks.sources.spark_formats.s3_sqs.reader import FileStreamReader

        return FileStreamReader(parse_s3_sqs(self.options), schema)


class CloudFilesDataSource(DataSource):
    """The streaming source `cloudFiles`, with option names of Auto Loader. It shares the reader of `s3-sqs`."""

    @classmethod
    def name(cls) -> str:
        return "cloudFiles"

    def schema(self) -> str:
        """Called only for a query without `.schema(...)`."""
        from deltaworks.sources.spark_formats.s3_sqs.cloud_files import declared_columns

        return declared_columns(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from deltaworks.sources.spark_formats.s3_sqs.cloud_files import parse_cloud_files
        from deltaworks.sources.spark_formats.s3_sqs.reader import FileStreamReader

        return FileStreamReader(parse_cloud_files(self.options, schema.names), schema)
