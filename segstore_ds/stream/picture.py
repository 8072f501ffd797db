"""The picture of a stream, as a page or as a Figure of matplotlib."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from segstore_ds.errors import InvalidInputError
from segstore_ds.observe.description import Description
from segstore_ds.observe.page import build_cell, build_page
from segstore_ds.version import requirement

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Picture:
    """What a stream was when it was made by `Stream.picture`; a notebook shows it."""

    found: Description

    def to_html(self) -> str:
        """Return a page, which needs no server and no network.

        It has the picture that a notebook shows, the history, tables of the newest commits and
        segments, and what holds storage.
        """
        return build_page(self.found)

    def plot(self) -> "Figure":
        """Return a Figure of matplotlib (the extra `plot`) with four plots.

        Segments by offset and size, the growth and the commits over time, what readers have not
        passed, and what holds storage.
        """
        try:
            drawing = import_module("segstore_ds.observe.plot")
        except ImportError as error:
            raise InvalidInputError(
                "plots need matplotlib", remedy=f"pip install '{requirement('plot')}'"
            ) from error
        figure: Figure = drawing.build_figure(self.found)
        return figure

    def _repr_html_(self) -> str:
        return build_cell(self.found.figures.url, lambda: self.found)
