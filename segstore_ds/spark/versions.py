"""What differs between Spark versions, found by what their API has, never by a version number.

Other modules of this package import these names from here alone. Spark before 4.2 passes a
streaming source neither the start of a batch nor a limit, and has no class for either; before 4.1
it has no streaming writer of Arrow batches. The client of Spark Connect alone has no py4j.
`docs/start.md` says what users notice.
"""

import inspect
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:

    class DataSourceStreamArrowWriter(  # type: ignore[no-redef, misc]
        DataSourceStreamWriter, DataSourceArrowWriter
    ):
        """A streaming writer to which Spark 4.0 gives Arrow batches, as it does to a batch's."""


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
except ImportError:

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Nothing: this Spark runs an `AvailableNow` query as one batch."""

    class ReadLimit:  # type: ignore[no-redef]
        """What this Spark never passes."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """As `ReadLimit`."""

    class ReadMaxFiles(ReadLimit):  # type: ignore[no-redef]
        """As `ReadLimit`."""

        def __init__(self, max_files: int) -> None:
            self.max_files = max_files


try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
except ImportError:

    class Py4JError(Exception):  # type: ignore[no-redef]
        """What nothing raises here: there is no JVM."""


__all__ = [
    "DataSourceStreamArrowWriter",
    "Py4JError",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxFiles",
    "SupportsTriggerAvailableNow",
    "to_arrow",
]

# Where there is no such argument, times with a zone are in UTC.
_ZONE: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(types.to_arrow_schema).parameters else {}
)


def to_arrow(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark checks a reader's batches against: times are in UTC."""
    return types.to_arrow_schema(schema, **_ZONE)
