"""The module that Spark finds by itself, installed at the top level as `pyspark_segstore`.

Spark imports every module called `pyspark_*` in a separate process and takes `DefaultSource` from
it. If one such module fails to import, all of them are disabled. So this module imports nothing of
segstore before Spark uses the format.
"""

from typing import Any

from pyspark.sql.datasource import DataSource


def _delegated(name: str) -> Any:
    def call(self: Any, *args: Any, **given: Any) -> Any:
        return getattr(self._source, name)(*args, **given)

    return call


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

    schema = _delegated("schema")
    reader = _delegated("reader")
    writer = _delegated("writer")
    streamReader = _delegated("streamReader")  # noqa: N815 - Spark's name
    streamWriter = _delegated("streamWriter")  # noqa: N815 - Spark's name
