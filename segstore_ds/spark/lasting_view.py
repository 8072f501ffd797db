"""`create_view`: a name for a stream in SQL that later sessions of the catalog know as well.

Spark keeps no option of a catalog table, and a view over `WITH (path = ...)` keeps its text. So a
name is a view over a table that has the stream's columns and nothing else. Each view has a table of
its own, since Spark may plan all mentions of a table in a statement with the options of one.
"""

import os
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from segstore_ds.errors import InvalidInputError
from segstore_ds.spark.batch.planning import NO_PATH
from segstore_ds.spark.boundary import translate_errors
from segstore_ds.spark.option_texts import as_location, as_texts

TABLE_SUFFIX = "__columns"
_REFUSED = ("path", "versionAsOf", "timestampAsOf", "storageOptions")


@translate_errors
def create_view(
    spark: SparkSession,
    name: str,
    url: str | os.PathLike[str],
    *,
    replace: bool = False,
    **options: Any,
) -> None:
    """Create a view of a stream that lasts as long as the catalog: ``SELECT * FROM clicks``.

    Each query reads the newest events, in this session and in later ones, which need the package
    installed, or `register`. The view has the columns that the stream has now: if the stream gets
    new ones, create the view again. Spark takes the columns from an empty table beside the view,
    ``clicks__columns``; SQL writes through that table:
    ``INSERT INTO clicks__columns WITH (path = '...') ...``.

    Args:
        spark: The session. Without a persistent catalog, such as Hive's, views end with it.
        name: As in SQL, also qualified: ``clicks``, ``db.clicks``.
        url: The stream.
        replace: Drop a view of this name, and its table, first; streams stay.
        options: Those of reads in docs/options.md, which become part of the view, for example
            ``startCut=10``.

    Raises:
        InvalidInputError: A view can't keep one of the options.
        pyspark.errors.AnalysisException: There is such a view or table already, or no stream.

    Examples:
        >>> segstore.spark.create_view(spark, "clicks", stream.url)
        >>> spark.sql("SELECT user FROM clicks WHERE n > 2").first()
        Row(user='eve')
    """
    url, given = as_location(url), as_texts(options)
    if refused := [option for option in _REFUSED if option in given]:
        raise InvalidInputError(
            "a view can't keep the option",
            remedy='name a version as endCut="version:3"; storage options are given to register',
            options=refused,
        )
    quoted = name.endswith("`")
    table = f"{name.removesuffix('`')}{TABLE_SUFFIX}{'`' * quoted}"
    schema = spark.read.format("segstore").options(**given).load(url).schema
    if replace:
        spark.sql(f"DROP VIEW IF EXISTS {name}")
        spark.sql(f"DROP TABLE IF EXISTS {table}")
    try:
        spark.catalog.createTable(table, source="segstore", schema=schema)
    except PySparkException as error:
        if NO_PATH not in str(error):  # Spark Connect reads the table that it has made
            raise
    kept = ", ".join(f"{key} = {_quote(value)}" for key, value in {"path": url, **given}.items())
    try:
        spark.sql(f"CREATE VIEW {name} AS SELECT * FROM {table} WITH ({kept})")  # noqa: S608 - quoted
    except PySparkException:
        spark.sql(f"DROP TABLE {table}")
        raise


def _quote(text: str) -> str:
    r"""Return a text as a literal of Spark's SQL.

    >>> _quote("it's")
    "'it\\'s'"
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
