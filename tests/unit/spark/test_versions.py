"""What stands in where an older Spark, or the client of Spark Connect alone, lacks a name."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest
from pyspark.sql import datasource
from pyspark.sql.types import StructType, TimestampType

from segstore_ds.spark import versions


def test_everything_that_some_spark_lacks_has_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyspark.sql.streaming.datasource", "py4j.protocol"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr(datasource, "DataSourceStreamArrowWriter", raising=False)
    spec = spec_from_file_location("older", versions.__file__)
    assert spec is not None
    assert spec.loader is not None
    older = module_from_spec(spec)
    spec.loader.exec_module(older)
    assert all(hasattr(older, name) for name in versions.__all__)
    # The worker of Spark 4.0 gives record batches to a writer of this class.
    assert issubclass(older.DataSourceStreamArrowWriter, datasource.DataSourceArrowWriter)
    assert issubclass(older.DataSourceStreamArrowWriter, datasource.DataSourceStreamWriter)


def test_arrow_times_are_in_utc() -> None:
    [field] = versions.to_arrow(StructType().add("t", TimestampType()))
    assert field.type.tz == "UTC"
