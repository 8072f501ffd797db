"""The formats of published tables."""

from typing import Literal, get_args

TableFormat = Literal["delta", "iceberg"]  # On disk, in the property `publish`.
TABLE_FORMATS: tuple[TableFormat, ...] = get_args(TableFormat)
