"""The data source classes that Spark finds by the names `s3-sqs`, `cloudFiles` and `kinesis`.

Imports only PySpark, because every session on this PYTHONPATH imports this module. Options and readers are imported on
demand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class S3SqsDataSource(DataSource):
    """The streaming source `s3-sqs`; `deltaworks.sources.spark_formats.options` describes its options."""

    @classmethod
    def name(cls) -> str:
        return "s3-sqs"

    def schema(self) -> StructType:
        """Called only for a query without `.schema(...)`."""
        from deltaworks.sources.spark_formats.options import check_no_inference, schema_missing_error

        check_no_inference(self.options)
        raise schema_missing_error()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from deltaworks.sources.spark_formats.options import parse_s3_sqs
        from deltaworks.sources.spark_formats.reader import FileStreamReader

        return FileStreamReader(parse_s3_sqs(self.options), schema)


class CloudFilesDataSource(DataSource):
    """The streaming source `cloudFiles`, with option names of Auto Loader. It shares the reader of `s3-sqs`."""

    @classmethod
    def name(cls) -> str:
        return "cloudFiles"

    def schema(self) -> str:
        """Called only for a query without `.schema(...)`."""
        from deltaworks.sources.spark_formats.cloud_files import declared_columns

        return declared_columns(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from deltaworks.sources.spark_formats.cloud_files import parse_cloud_files
        from deltaworks.sources.spark_formats.reader import FileStreamReader

        return FileStreamReader(parse_cloud_files(self.options, schema.names), schema)


FORMAT = "kinesis"


class KinesisDataSource(DataSource):
    """The streaming data source `kinesis`. docs/reference/sources.md lists its options. There is no batch reader."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        from deltaworks.sources.kinesis.options import check_options
        from deltaworks.sources.kinesis.rows import ROW_SCHEMA

        check_options(self.options)
        return from_arrow_schema(ROW_SCHEMA)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from deltaworks.sources.kinesis.options import KinesisOptions
        from deltaworks.sources.kinesis.stream_reader import KinesisStreamReader

        return KinesisStreamReader(KinesisOptions.parse(self.options))


def register(spark: SparkSession) -> None:
    """Registers the three formats with a session. Not needed if the modules `pyspark_deltaworks_*` are on PYTHONPATH,
    where they must be for a session with the jars. Idempotent.
    """
    for data_source in (S3SqsDataSource, CloudFilesDataSource, KinesisDataSource):
        spark.dataSource.register(data_source)
