"""The streaming source `s3-sqs` as Spark looks it up; options and reader are imported when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class S3SqsDataSource(DataSource):
    """The streaming source `s3-sqs`; its options are described in `deltaworks.streaming.s3_sqs.options`."""

    @classmethod
    def name(cls) -> str:
        return "s3-sqs"

    def schema(self) -> StructType:
        from deltaworks.streaming.s3_sqs.options import S3SqsOptions, schema_missing

        S3SqsOptions.parse(self.options)
        raise schema_missing()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from deltaworks.streaming.s3_sqs.options import S3SqsOptions
        from deltaworks.streaming.s3_sqs.reader import S3SqsStreamReader

        return S3SqsStreamReader(S3SqsOptions.parse(self.options), schema)
