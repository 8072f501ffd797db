"""A story told on a terminal: titles, snippets that are printed and then run, folders, sizes."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

from segstore_ds.options.quantities import with_unit


class Story:
    """Prints code and runs exactly what it printed; the snippets share the given names."""

    def __init__(self, **names: Any) -> None:
        self.names = names
        self._plain = "NO_COLOR" in os.environ or not sys.stdout.isatty()

    def say(self, text: str) -> None:
        """Print a sentence."""
        print(text, flush=True)

    def step(self, title: str) -> None:
        """Print the title of a step."""
        self.say(f"\n{self._styled('1', '== ' + title)}\n")

    def run(self, snippet: str) -> None:
        """Print a snippet, then run it; raises what the snippet raises."""
        code = dedent(snippet).strip()
        self.say(self._styled("36", indent(code, "    ")) + "\n")
        exec(compile(code, "<demo>", "exec"), self.names)  # noqa: S102 - our own text, shown as it runs

    def _styled(self, style: str, text: str) -> str:
        return text if self._plain else f"\033[{style}m{text}\033[0m"


def draw_tree(folder: Path) -> Iterator[str]:
    """Yield the lines of a folder's tree, with the sizes of files."""
    yield f"{folder.name}/"
    for path in sorted(folder.rglob("*")):
        depth = "  " * len(path.relative_to(folder).parts)
        if path.is_dir():
            yield f"{depth}{path.name}/"
        else:
            yield f"{depth + path.name:52} {with_unit(path.stat().st_size):>10}"
