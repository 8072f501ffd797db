"""Commands to learn by: docs and demo."""

import sys
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from segstore_ds.cli.arguments import Json
from segstore_ds.cli.show import Table, print_json

_PAGES = {"design": "DESIGN.md", "format": "format/FORMAT.md"}


def docs(
    page: Annotated[
        str | None, typer.Argument(metavar="PAGE", help="Its name; none lists them all.")
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
    if page not in paths:
        raise typer.BadParameter(f"no page {page}; there are {', '.join(sorted(paths))}")
    text = paths[page].read_text("utf-8")
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


def _title(text: str) -> str:
    return text.split("\n", 1)[0].lstrip("# ")


def demo(
    *,
    folder: Annotated[
        Path | None, typer.Option(help="Keep the streams here; must be empty or missing.")
    ] = None,
    install_jdk: Annotated[
        bool, typer.Option("--install-jdk", help="Fetch a Java into ~/.jdk if none will do.")
    ] = False,
) -> None:
    """Show what segstore does, in under a minute."""
    from segstore_ds.cli.demo import run_demo

    raise typer.Exit(run_demo(folder, install_jdk=install_jdk))


VERBS = (docs, demo)
