"""Every option of segstore: one table that parsing, errors and docs/options.md come from.

Names are case-insensitive. A value is text, as Spark passes it, or already of the option's type.
"""

from segstore_ds.options.parsing import (
    BY_NAME,
    default,
    format_table,
    parse_options,
    parse_value,
)
from segstore_ds.options.table import (
    COPIED,
    FLUSH_BYTES,
    FLUSH_ROWS,
    FLUSH_SECONDS,
    LINGER_SECONDS,
    NATIVE,
    PYTHON,
    READ,
    STREAM_READ,
    STREAM_WRITE,
    TABLE,
    TRANSACTION,
    WRITE,
    Option,
)

__all__ = [
    "BY_NAME",
    "COPIED",
    "FLUSH_BYTES",
    "FLUSH_ROWS",
    "FLUSH_SECONDS",
    "LINGER_SECONDS",
    "NATIVE",
    "PYTHON",
    "READ",
    "STREAM_READ",
    "STREAM_WRITE",
    "TABLE",
    "TRANSACTION",
    "WRITE",
    "Option",
    "default",
    "format_table",
    "parse_options",
    "parse_value",
]
