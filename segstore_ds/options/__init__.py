"""Every option of segstore: one table that parsing, errors and docs/options.md come from.

Names are case-insensitive. A value is text, as Spark passes it, or already of the option's type.
"""

from segstore_ds.options.parsing import BY_NAME, default, parse_options, parse_value
from segstore_ds.options.table import (
    FLUSH_BYTES,
    FLUSH_ROWS,
    FLUSH_SECONDS,
    LINGER_SECONDS,
    NOTES,
    PYTHON,
    READ,
    STREAM_READ,
    STREAM_WRITE,
    TABLE,
    WRITE,
    Option,
)

__all__ = [
    "BY_NAME",
    "FLUSH_BYTES",
    "FLUSH_ROWS",
    "FLUSH_SECONDS",
    "LINGER_SECONDS",
    "NOTES",
    "PYTHON",
    "READ",
    "STREAM_READ",
    "STREAM_WRITE",
    "TABLE",
    "WRITE",
    "Option",
    "default",
    "parse_options",
    "parse_value",
]
