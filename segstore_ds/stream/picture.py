"""The picture of a stream as a page."""

from dataclasses import dataclass

from segstore_ds.observe.description import Description
from segstore_ds.observe.page import build_cell, build_page


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

    def _repr_html_(self) -> str:
        return build_cell(self.found.figures.url, lambda: self.found)
