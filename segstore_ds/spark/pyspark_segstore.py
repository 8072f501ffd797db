"""The module that Spark finds by itself, installed at the top level as `pyspark_segstore`.

Spark imports every module called `pyspark_*` in a separate process and takes `DefaultSource` from
it. If one such module fails to import, all of them are disabled. So this module imports nothing of
segstore before Spark uses the format.
"""

from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """The format `segstore`; `segstore_ds.spark.source.SegstoreDataSource` does everything."""

    def __init__(self, options: dict[str, str]) -> None:
        from segstore_ds.spark.source import SegstoreDataSource  # noqa: PLC0415 - see the module

        super().__init__(options)
        self._source: Any = SegstoreDataSource(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "segstore"

    def schema(self) -> StructType:
        """Return the stream's columns."""
        schema: StructType = self._source.schema()
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader."""
        reader: DataSourceReader = self._source.reader(schema)
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the batch writer."""
        writer: DataSourceWriter = self._source.writer(schema, overwrite)
        return writer

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query."""
        reader: DataSourceStreamReader = self._source.streamReader(schema)
        return reader

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a streaming query."""
        writer: DataSourceStreamWriter = self._source.streamWriter(schema, overwrite)
        return writer
