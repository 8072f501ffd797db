"""Columns of metadata tables, by type."""

import pyarrow as pa


def ints(*names: str) -> list[pa.Field]:
    """Return columns of integers."""
    return [pa.field(name, pa.int64()) for name in names]


def texts(*names: str) -> list[pa.Field]:
    """Return columns of texts."""
    return [pa.field(name, pa.string()) for name in names]


def flags(*names: str) -> list[pa.Field]:
    """Return columns of booleans."""
    return [pa.field(name, pa.bool_()) for name in names]


def times(*names: str) -> list[pa.Field]:
    """Return columns of times."""
    return [pa.field(name, pa.timestamp("us", "UTC")) for name in names]
