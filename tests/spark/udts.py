"""A user-defined type that Spark's workers can import."""

from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import ArrayType, DataType, DoubleType, UserDefinedType


class PointUDT(UserDefinedType):
    """Points as arrays of two doubles."""

    @classmethod
    def sqlType(cls) -> DataType:  # noqa: N802 - Spark's name
        return ArrayType(DoubleType(), False)

    @classmethod
    def module(cls) -> str:
        return "udts"

    def serialize(self, obj: "Point") -> list[float]:
        return [obj.x, obj.y]

    def deserialize(self, datum: Any) -> "Point":
        return Point(datum[0], datum[1])


@dataclass(frozen=True)
class Point:
    """A point; Spark finds its type by the attribute."""

    x: float
    y: float

    __UDT__ = PointUDT()
