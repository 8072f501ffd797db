"""The format `segstore` for Spark: which reader and which writer answers, and the pinned version.

Spark calls each method in a process of its own; what crosses between them is pickled. `schema()`
runs when a DataFrame is loaded and pins the version: the root travels with the DataFrame, so every
later plan of it reads the same events.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import LongType, StructType

from segstore_ds.errors import InvalidInputError, SchemaMismatchError
from segstore_ds.format.envelope import decode_envelope, encode_envelope
from segstore_ds.format.root import Root, decode_root, encode_root
from segstore_ds.options import READ, WRITE, parse_options
from segstore_ds.spark.reader import plan_reader, plan_reading
from segstore_ds.spark.schemas import from_stored, is_nullable
from segstore_ds.spark.writer import SegstoreWriter, plan_writer
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream import Stream, open_on

NO_PATH = (
    "give the stream's location: load(path), save(path) or the option path. Spark forgets a "
    "catalog table's options, so for SQL use CREATE TEMPORARY VIEW v USING segstore OPTIONS "
    "(path '...'), or SELECT ... FROM t WITH (path = '...')"
)
_ASKED = "name columns of the stream with their types, in any order; cast afterwards"


class SegstoreDataSource(DataSource):
    """Batch reads and writes of segstore streams.

    The options are those of the tables in the README (`segstore_ds.options.TABLE`).
    """

    bound_storage_options: ClassVar[Mapping[str, Any] | None] = None

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._pinned: bytes | None = None

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "segstore"

    def schema(self) -> StructType:
        """Pin the newest version and return its columns.

        Raises:
            InvalidInputError: An option is not valid, or there is no path.
            NotFoundError: There is no stream.
            FormatError: The stream's metadata can't be read.
            StorageError: The filesystem failed.
        """
        options = parse_options(self.options, READ)
        stream = open_on(self._storage(options))
        self._pinned = encode_envelope(encode_root(stream.root))
        reading = plan_reading(stream, options, stream.root)
        return from_stored(reading.result_schema, stream.spark_schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan a read of the pinned version.

        Args:
            schema: What `schema` gave, or the user's own, which projects to its columns.

        Raises:
            SchemaMismatchError: The user's schema names other columns or types.
            As `segstore_ds.Stream.read` otherwise.
        """
        options = parse_options(self.options, READ)
        root = self._pinned_root()
        storage = self._storage(options)
        stream = open_on(storage) if root is None else Stream.at_root(storage, root)
        root = root or stream.root
        wanted = _project(stream, options, schema)
        return plan_reader(stream, {**options, "columns": wanted}, root, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Plan a write: create the stream if it is missing, check the columns, fix the token.

        Raises:
            As `segstore_ds.Stream.plan_write`.
        """
        options = parse_options(self.options, WRITE)
        storage = self._storage(options)
        return SegstoreWriter(plan_writer(storage, options, schema, overwrite=overwrite))

    def _storage(self, options: Mapping[str, Any]) -> Storage:
        path = options["path"]
        if path is None:
            if "paths" in self.options:
                raise InvalidInputError("several paths", remedy="load one stream at a time")
            raise InvalidInputError("no path", remedy=NO_PATH)
        return open_storage(
            path,
            options["storageOptions"] or self.bound_storage_options,
            single_writer=bool(options.get("singleWriter")),
        )

    def _pinned_root(self) -> Root | None:
        if self._pinned is None:
            return None
        return decode_root(decode_envelope(self._pinned, where="pinned"), where="pinned")


def _project(stream: Stream, options: Mapping[str, Any], schema: StructType) -> tuple[str, ...]:
    """Return the columns of the stream that a schema asks for, in its order."""
    extra = {options["offsetColumn"], options["segmentColumn"]} - {None}
    known = {
        field.name: field.dataType for field in from_stored(stream.schema, stream.spark_schema)
    }
    known.update(dict.fromkeys(extra, LongType()))
    if not schema.fields:
        raise SchemaMismatchError("the schema asked for has no columns", remedy=_ASKED)
    for field in schema:
        found = known.get(field.name)
        if found is None or found.simpleString() != field.dataType.simpleString():
            raise SchemaMismatchError(
                "the schema asked for is not the stream's",
                remedy=_ASKED,
                column=field.name,
                asked=field.dataType.simpleString(),
                stream=found.simpleString() if found else "no such column",
            )
        if not is_nullable(field.dataType):
            raise SchemaMismatchError(
                "the schema asked for has NOT NULL inside a column",
                remedy="declare it nullable, as everything in a stream is",
                column=field.name,
            )
    columns = tuple(field.name for field in schema if field.name not in extra)
    if options["columns"] is not None and set(columns) != set(options["columns"]):
        raise InvalidInputError(
            "the option columns and the schema ask for different columns",
            remedy="give one of the two",
            columns=options["columns"],
            schema=columns,
        )
    return columns
