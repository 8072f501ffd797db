"""The request of a write, and the target of its tasks; both are fixed until the commit."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from segstore_ds.errors import ConflictError
from segstore_ds.format.root import Root
from segstore_ds.format.schema.column_names import with_names
from segstore_ds.log.commit import winner_of
from segstore_ds.status.writers import WriterKey
from segstore_ds.storage import Storage
from segstore_ds.write.layout import Layout

if TYPE_CHECKING:  # few streams have rules
    from segstore_ds.write.rules import BoundRules


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A request to write; `Stream.plan_write` describes each field.

    `compact` asks for automatic compaction after the commit, with the same layout. `key_columns`
    and `time_column` are for a stream that the write creates.
    """

    schema: pa.Schema = field(repr=False)
    layout: Layout
    client: str
    writer: WriterKey | None = None
    overwrite: bool = False
    expected_tail: int | None = None
    expected_version: int | None = None
    merge_schema: bool = False
    replace_schema: bool = False
    spark_schema: str | None = field(default=None, repr=False)
    compact: bool = False
    key_columns: tuple[str, ...] | None = None
    time_column: str | None = None

    def check_expected(self, root: Root) -> None:
        """Raise ConflictError if the root's tail or version is not the expected one. Pure."""
        tail, version = self.expected_tail, self.expected_version
        if tail is not None and tail != root.tail:
            raise ConflictError(
                "tail has moved", expected=tail, actual=root.tail, **winner_of(root)
            )
        if version is not None and version != root.version:
            raise ConflictError(
                "version has changed", expected=version, actual=root.version, **winner_of(root)
            )


@dataclass(frozen=True, slots=True)
class Target:
    """What all tasks of a write share; picklable."""

    storage: Storage = field(repr=False)  # the stream's folder
    schema: pa.Schema = field(repr=False)  # the stored schema
    layout: Layout  # sizes and compression
    # The folder of the staged objects; None to stage nothing and only count the rows.
    token: str | None
    key_columns: tuple[str, ...] = ()  # columns for which frames get a Bloom filter
    time_column: str | None = None  # column whose bounds are kept whatever the layout says
    names: tuple[str, ...] = ()  # column names in batches, if they differ from the stored names
    rules: "BoundRules | None" = None  # rules for the rows

    @property
    def given(self) -> pa.Schema:
        """The schema that batches are converted to: the stored one with the columns' names."""
        return with_names(self.schema, self.names) if self.names else self.schema
