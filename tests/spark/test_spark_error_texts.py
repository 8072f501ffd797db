"""What Spark shows of an error: our text first, in the words of Spark's options."""

import ast
import re
import shutil
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest
from checkpoints import start_query
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from sessions import error_of

import segstore_ds as segstore
from segstore_ds.errors import StorageError, TruncatedError
from segstore_ds.options.table import TABLE
from segstore_ds.spark.boundary import ENTRY_POINTS, spell_for_spark, translate_errors

PACKAGE = Path(segstore.__file__).parent
NAMES = {option.name for option in TABLE if option.name != option.name.lower()}
SPARKS_OWN = 230  # what Spark itself says first, and the one frame of ours
QUERYS_OWN = 400  # and names the query by two ids


def before(text: str) -> int:
    """Return the characters before our text, but for the boundary's own path."""
    (frame,) = re.findall(r'File "([^"]*boundary\.py)"', text[: text.index("SEG_")])
    return text.index("SEG_") - len(frame)


@pytest.fixture
def stream(url) -> segstore.Stream:
    stream = segstore.create(url, pa.schema([("n", pa.int64())]))
    stream.append(pa.table({"n": range(100_000)}))
    return stream


def test_errors_of_writes_show_our_text_first(spark, stream, append):
    rows = spark.range(3).selectExpr("id AS n", "1 AS z")
    text = error_of(lambda: append(rows))
    assert before(text) < SPARKS_OWN, text
    assert "set mergeSchema=true" in text  # in the caller's own spelling, here Spark's


@pytest.mark.slow
def test_errors_of_reads_tasks_and_commits_show_our_text_first(spark, stream, load, append):
    stream.truncate(10)
    frame, url = load(), stream.url

    def seal(batches):
        segstore.open(url).seal()
        yield from batches

    sealing = spark.range(0, 5, 1, 1).selectExpr("id AS n").mapInArrow(seal, "n long")
    texts = [error_of(lambda: load(startCut=5).collect()), error_of(lambda: append(sealing))]
    shutil.rmtree(Path(url.removeprefix("file://"), "segments"))
    texts += [error_of(frame.collect), error_of(lambda: load(foo=1))]
    for text, told in zip(texts, ("failOnDataLoss=false", "SEALED", "MISSING", ""), strict=True):
        assert told in text
        assert before(text) < SPARKS_OWN, text


@pytest.mark.slow
def test_errors_of_queries_show_our_text_first(spark, stream, tmp_path):
    stream.truncate(10)
    target = segstore.create(f"file://{tmp_path}/sealed", stream.schema)
    target.seal()
    for cut, told in ((5, "SEG_TRUNCATED"), ("head", "SEG_SEALED")):
        events = spark.readStream.format("segstore").option("startCut", cut).load(stream.url)
        writer = events.writeStream.format("segstore").option("path", target.url)
        at = f"{tmp_path}/{told}"
        text = error_of(lambda writer=writer, at=at: start_query(writer, at, now=True))
        # Spark doesn't simplify its own frames, with or without their source.
        shown = re.sub(r'  File "[^"]*pyspark[^"]*".*\n(?:    .*\n)*', "", text)
        assert told in text
        assert before(shown) < QUERYS_OWN, text


def test_remedies_name_the_callers_own_spelling(spark, stream):
    with pytest.raises(segstore.errors.SchemaMismatchError, match="set merge_schema=True"):
        stream.append(pa.table({"n": [1], "z": [1]}))
    stream.truncate(10)
    with pytest.raises(TruncatedError, match="set fail_on_data_loss=False"):
        stream.read(start=5)
    with pytest.raises(TruncatedError, match="set failOnDataLoss=false"):
        segstore.spark.read(spark, stream.url, startCut=5)


def test_values_are_never_respelled():
    @translate_errors
    def fail() -> None:
        raise StorageError("writer_id is odd", remedy="set single_writer=True", path="merge_schema")

    told = "SEG_STORAGE: writerId is odd: path='merge_schema'; set singleWriter=true"
    with pytest.raises(StorageError, match=f"^{re.escape(told)}$"):
        fail()
    for text in ("my_writer_id unmerged_schema", "call settings.update(time_column='ts')"):
        assert spell_for_spark(text) == text


def texts_of(path: Path) -> list[str]:
    """Return the texts of a module that are no docstrings."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, documented)]
    docstrings = {id(body[0].value) for body in bodies if isinstance(body[0], ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in docstrings and " " in node.value
    ]


def test_outside_of_spark_no_text_names_an_option_of_sparks():
    rooms = [room for room in PACKAGE.iterdir() if room.name not in ("spark", "cli", "options")]
    paths = [path for room in rooms for path in ([room] if room.is_file() else room.rglob("*"))]
    wrong = {
        (path.name, text)
        for path in paths
        if path.suffix == ".py"
        for text in texts_of(path)
        if NAMES & set(re.findall(r"\w+", text))
    }
    assert wrong == set()


def test_every_entry_point_is_guarded():
    for path in (PACKAGE / "spark").rglob("[!_]*.py"):
        import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
    kinds = (DataSource, DataSourceReader, DataSourceWriter)
    kinds += (DataSourceStreamReader, DataSourceStreamWriter)
    seen, pending = [], list(kinds)
    while pending:
        found = pending.pop().__subclasses__()
        pending += found
        seen += [cls for cls in found if cls.__module__.startswith("segstore_ds.spark.")]
    assert len(seen) >= 6
    for cls in seen:
        for name in ENTRY_POINTS & vars(cls).keys():
            if not cls.__module__.endswith("pyspark_segstore"):
                assert "_guarded" in vars(cls)[name].__code__.co_qualname, (cls, name)
