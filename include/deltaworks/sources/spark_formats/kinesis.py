"""`spark.readStream.format("kinesis")`. Imports only PySpark, because every session on this PYTHONPATH imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

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
    """Registers the data source with a session. Not needed if `pyspark_deltaworks_kinesis` is on PYTHONPATH, where it
    must be for a session with the jars. Idempotent.
    """
    spark.dataSource.register(KinesisDataSource)
