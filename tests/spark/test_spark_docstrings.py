"""Examples in the docstrings of `segstore.spark`: each name has one, and each is run."""

import pytest
from docstring_kit import run_example

import segstore_ds as segstore

pytestmark = pytest.mark.slow


@pytest.fixture
def no_views(spark):
    """Remove what an example leaves in the catalog."""
    yield
    spark.sql("DROP VIEW IF EXISTS clicks")
    spark.sql("DROP TABLE IF EXISTS clicks__columns")


@pytest.mark.parametrize("name", segstore.spark.__all__)
@pytest.mark.usefixtures("no_views")
def test_example_in_spark_gives_what_it_says(name, spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    docstring = getattr(segstore.spark, name).__doc__
    assert ">>>" in docstring
    run_example(name, docstring, spark=spark)
