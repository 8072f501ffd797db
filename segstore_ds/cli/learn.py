"""Commands to learn by: docs and demo."""

import re
import sys
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from segstore_ds.cli.arguments import Json
from segstore_ds.cli.show import Table, print_json

_PAGES = {
    "design": "DESIGN.md",
    "format": "format/FORMAT.md",
    "tables": "publish/TABLES.md",
}


def docs(
    page: Annotated[
        str | None,
        typer.Argument(metavar="PAGE", help="Its name, or an error's code; none lists them all."),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Read the documentation that is installed."""
    root = resources.files("segstore_ds")
    paths = {
        name.name.removesuffix(".md"): name
        for name in root.joinpath("docs").iterdir()
        if name.name.endswith(".md")
    }
    paths |= {name: root.joinpath(path) for name, path in _PAGES.items()}
    if page is None:
        titles = {name: _title(path.read_text("utf-8")) for name, path in sorted(paths.items())}
        Table(as_json=as_json).rows([{"page": n, "title": title} for n, title in titles.items()])
        return
    text = paths[page].read_text("utf-8") if page in paths else None
    if text is None:
        text = _entry(paths["runbook"].read_text("utf-8"), page)
    if text is None:
        raise typer.BadParameter(
            f"no page {page}; there are {', '.join(sorted(paths))}, and the codes of errors"
        )
    if as_json:
        print_json({"page": page, "text": text})
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        console = Console()
        with console.pager(styles=True):
            console.print(Markdown(text))
    else:
        sys.stdout.write(text)


def _entry(runbook: str, code: str) -> str | None:
    """Return what the runbook says about an error's code, or None."""
    found = re.search(rf"^### {re.escape(code)}\n.*?(?=^##|\Z)", runbook, re.MULTILINE | re.DOTALL)
    return found and found[0].rstrip() + "\n"


def _title(text: str) -> str:
    return text.split("\n", 1)[0].lstrip("# ")


def demo(
    *,
    folder: Annotated[
        Path | None, typer.Option(help="Keep the stream here; must be empty or missing.")
    ] = None,
    install_jdk: Annotated[
        bool, typer.Option("--install-jdk", help="Fetch a Java into ~/.jdk if none will do.")
    ] = False,
) -> None:
    """Show what segstore does, in under a minute; leaves a picture, segstore-demo.html."""
    from segstore_ds.cli.demo import run_demo

    raise typer.Exit(run_demo(folder, install_jdk=install_jdk))


VERBS = (docs, demo)
