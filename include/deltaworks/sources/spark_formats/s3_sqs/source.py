"""The data source class that Spark finds by the name `s3-sqs`. Options and reader are imported on demand."""

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
        from deltaworks.sources.spark_formats.s3_sqs.options import S3SqsOptions
        from deltaworks.sources.spark_formats.s3_sqs.reader import S3SqsStreamReader

        return S3SqsStreamReader(S3SqsOptions.parse(self.options), schema)
