"""Where the tasks of a write put their segments, and how these are laid out."""

from dataclasses import dataclass, field

import pyarrow as pa

from segstore_ds.storage import Storage
from segstore_ds.write.layout import Layout


@dataclass(frozen=True, slots=True)
class Target:
    """What all tasks of a write share; picklable.

    Attributes:
        storage: The stream's folder.
        schema: The stored schema, which batches are converted to.
        layout: Sizes and compression.
        token: The folder of the staged objects; None to stage nothing and only count the rows.
        key_columns: The columns of which frames get a Bloom filter.
        time_column: The column whose bounds are kept whatever the layout says.
    """

    storage: Storage = field(repr=False)
    schema: pa.Schema = field(repr=False)
    layout: Layout
    token: str | None
    key_columns: tuple[str, ...] = ()
    time_column: str | None = None
