"""Commands that only read (ls, info, history, metrics, show), and documentation (docs, demo)."""

import inspect
import itertools
import pydoc
import re
import sys
import webbrowser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

import segstore_ds as segstore
from segstore_ds.cli import DAMAGED
from segstore_ds.cli.arguments import Run, Url
from segstore_ds.cli.show import expiry_text, print_json, say
from segstore_ds.options.quantities import with_unit
from segstore_ds.options.table import TABLE_FORMATS
from segstore_ds.storage import resolve_location
from segstore_ds.version import requirement

SHOWN_WRITERS = 20
SECTIONS_SHOWN = 20
_SHOWN = (int, float, str, type(None))  # of defaults
_LISTED = ("path", "events", "head", "tail", "version", "time", "sealed")
_COMMIT = (
    *("version", "time", "operation", "head", "tail", "rows", "writer_id", "batch_id"),
    *("client", "application", "changed", "reason", "merged"),
)
_SEGMENT = ("segment_id", "start", "end", "rows", "bytes", "format", "path")
_PAGES = (
    *("DESIGN.md", "SOURCE.md", "format/FORMAT.md", "publish/TABLES.md", "redact/REDACTION.md"),
    *("replication/REPLICATION.md", "retention/READERS.md"),
)


def ls(
    run: Run,
    url: Url,
    *,
    depth: Annotated[int, typer.Option(min=0, help="How many folders deep to look.")] = 3,
) -> None:
    """List the streams in a folder."""
    found = segstore.streams(url, storage_options=run.options(), depth=depth)
    rows = found.to_pylist()
    failed = [row for row in rows if row["code"]]
    for row in failed:
        row["error"] = run.spell(row["error"])
    run.table([rows], (*_LISTED, "error") if failed else _LISTED)
    if failed:
        raise typer.Exit(DAMAGED)


def info(
    run: Run,
    url: Url,
    *,
    segments: Annotated[bool, "List the segments instead, in offset order."] = False,
) -> None:
    """Show what a stream holds, or list its segments."""
    stream = run.read(url)
    if segments:
        run.table(stream.segments(), _SEGMENT)
        return
    known = stream.info()
    columns = {column.name: str(column.type) for column in stream.schema}
    tables = dict(_tables(run, stream))
    keys, time = stream.settings.key_columns, stream.settings.time_column
    if run.as_json:
        indexed = {"key_columns": keys, "time_column": time}
        print_json({"url": stream.url, **known, **indexed, "published": tables, "columns": columns})
        return
    writers = stream.metadata("writers").read_all().to_pylist() if stream.tail else []
    named = [_writer(stream, row) for row in writers[:SHOWN_WRITERS]]
    if len(writers) > len(named):
        named.append(f"and {len(writers) - len(named):,} more")
    (newest,) = stream.history(known["version"], known["version"] + 1).read_all().to_pylist()
    facts = {
        "stream": stream.url,
        "id": known["stream_id"],
        "version": f"{known['version']} ({newest['operation']})",
        "events": f"{stream.tail - stream.head:,}, offsets [{stream.head}, {stream.tail})",
        "segments": f"{known['segments']:,}, {with_unit(known['bytes'])}",
        "writers": ", ".join(named),
        "followers": ", ".join(stream.followers),
        "sealed": "yes" if stream.sealed else "",
        "keys": ", ".join(keys),
        "time": time or "",
        "expiry": ", ".join(map(expiry_text, stream.settings.expiry)),
        **tables,
    }
    say(*(f"{name:9} {fact}" for name, fact in facts.items() if fact))
    say(*(f"{'column':9} {name}: {kind}" for name, kind in columns.items()))


def _writer(stream: "segstore.Stream", row: Mapping[str, Any]) -> str:
    """Return a writer's id, with its query's name if the history has it, and its last batch."""
    query = None
    with suppress(segstore.SegstoreError):
        (commit,) = stream.history(row["version"], row["version"] + 1).read_all().to_pylist()
        query = re.search(r"\bquery/(\S+)", commit["client"] or "")
    name = f"{row['writer_id']} of query {query[1]}" if query else row["writer_id"]
    return f"{name} (batch {row['batch_id']})"


def _tables(run: Run, stream: "segstore.Stream") -> Iterator[tuple[str, str]]:
    """Yield the published tables by format, each with what it shows."""
    for name in TABLE_FORMATS:
        try:
            table = stream.published.get(name)
        except segstore.SegstoreError as error:
            yield name, f"can't be read: {run.spell(str(error))}"
            continue
        if table is not None:
            auto = ", published after commits" if name in stream.settings.publish else ""
            shown = f"offsets [{table.head}, {table.tail}), {table.lag:,} events behind{auto}"
            yield name, f"{shown}: {table.reason}" if table.lag else shown
    try:
        for table in stream.published.latest.values():
            by = f"newest by {', '.join(table.latest_by)} at {table.url}"
            yield f"{table.format} latest", f"{by}, {table.lag:,} events behind"
    except segstore.SegstoreError as error:
        yield "latest", f"can't be read: {run.spell(str(error))}"


def history(
    run: Run,
    url: Url,
    *,
    rows: Annotated[int, typer.Option("--rows", "-n", min=0, help="How many; 0: no limit.")] = 50,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="Also those that only name a reader.")
    ] = False,
    since: Annotated[str | None, typer.Option(help="From this time on, with a zone.")] = None,
    until: Annotated[str | None, typer.Option(help="Before this time, with a zone.")] = None,
    operation: Annotated[
        list[str] | None, typer.Option(help="Of this operation; repeat it for several.")
    ] = None,
    client: Annotated[str | None, typer.Option(help="Whose client has this text.")] = None,
) -> None:
    """List the newest commits, oldest first: who did what, and when."""
    import pyarrow.compute as pc

    stream = run.read(url)

    def kept(start: int) -> Iterator[Any]:
        how: dict[str, Any] = {"since": since, "until": until, "client": client}
        for batch in stream.history(start, operation=operation, **how):
            shown = every or operation
            yield batch if shown else batch.filter(pc.not_equal(batch["operation"], "reader"))

    if not rows:
        run.table(kept(0), _COMMIT)
        return
    start, looked, found = stream.version + 1, rows, list[Any]()
    while start and sum(map(len, found)) < rows:
        start = max(0, stream.version + 1 - looked)
        found, looked = [*kept(start)], 8 * looked
    run.table([[row for batch in found for row in batch.to_pylist()][-rows:]], _COMMIT)


def metrics(
    run: Run,
    url: Url,
    *,
    prometheus: Annotated[bool, "Print the text that Prometheus scrapes."] = False,
    storage: Annotated[bool, "Also say what takes storage; lists the whole stream."] = False,
) -> None:
    """Measure a stream: sizes, and lag of readers, followers and tables."""
    from segstore_ds.observe.series import sample, stream_samples

    try:
        found = run.read(url).metrics(storage=storage)
    except segstore.SegstoreError:
        if prometheus:
            _print_prometheus([sample("up", 0, resolve_location(url).url)])
        raise
    if run.as_json:
        print_json(found)
        return
    if prometheus:
        _print_prometheus(stream_samples(found))
        return
    rows = [
        {
            "metric": sample.series.name.removeprefix("segstore."),
            "of": "/".join(sample.labels[1:]),
            "value": int(sample.value) if sample.value.is_integer() else round(sample.value, 3),
            "unit": sample.series.unit_word,
        }
        for sample in stream_samples(found)
    ]
    run.table([rows])
    say(*(f"DAMAGED {run.spell(text)}" for text in found.damaged))


def _print_prometheus(samples: Iterable[Any]) -> None:
    from segstore_ds.observe.series import prometheus_text

    try:
        text = prometheus_text(samples)
    except ImportError as error:
        raise typer.BadParameter(
            f"--prometheus needs pip install '{requirement('prometheus')}': {error}"
        ) from None
    say(*text.splitlines())


def show(
    run: Run,
    url: Url,
    *,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="- for a pipe; otherwise NAME.segstore.html here.",
        ),
    ] = None,
    storage: Annotated[
        bool,
        typer.Option(
            "--storage/--no-storage", help="Also show what takes storage; lists the whole stream."
        ),
    ] = True,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write a picture of a stream, its history and readers as one HTML page."""
    stream = run.read(url)
    page = stream.picture(storage=storage).to_html()
    if output == "-":
        if run.as_json or open_it:
            raise typer.BadParameter("-o - prints the page alone: name a file for --json or --open")
        sys.stdout.write(page)
        return
    name = stream.url.rstrip("/").rpartition("/")[2] or "stream"
    path = Path(output or f"{name}.segstore.html").absolute()
    path.write_text(page, encoding="utf-8")
    size = path.stat().st_size
    done = {"url": stream.url, "file": str(path), "bytes": size}
    run.report(done, f"{path}: {with_unit(size)}")
    if open_it and not webbrowser.open(path.as_uri()):
        raise typer.BadParameter(f"--open found no browser: open {path}")


def docs(
    run: Run,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PAGE",
            help="A page, an error's code, or words to search for; leave it out to list the pages.",
        ),
    ] = None,
) -> None:
    """Read or search the documentation that is installed."""
    page = " ".join(words) if words else None
    root = resources.files("segstore_ds")
    paths = [*root.joinpath("docs").iterdir(), *map(root.joinpath, _PAGES)]
    names = (path.name.lower().removesuffix(".md") for path in paths)
    texts = {
        name: path.read_text("utf-8")
        for name, path in sorted(zip(names, paths, strict=True), key=lambda pair: pair[0])
        if path.name.endswith(".md")
    }
    if page is None:
        titles = {name: text.split("\n", 1)[0].lstrip("# ") for name, text in texts.items()}
        run.table([[{"page": name, "title": title} for name, title in titles.items()]])
        return
    if page not in texts.keys() - {"reference"}:
        rendered = re.sub(r"^::: (\S+)$", _described, texts["reference"], flags=re.MULTILINE)
        texts["reference"] = rendered
    text = texts.get(page) or _find_entry(texts["runbook"], page)
    if text is None and (sections := _search(texts, page.casefold().split())):
        run.table([sections[:SECTIONS_SHOWN]])
        return
    if text is None:
        raise typer.BadParameter(
            f"no page is {page} or has these words: give one of {', '.join(texts)}, or an error's "
            "code"
        )
    if run.as_json:
        print_json({"page": page, "text": text})
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        console = Console()
        with console.pager(styles=True):
            console.print(Markdown(text))
    else:
        sys.stdout.write(text)


def _find_entry(runbook: str, code: str) -> str | None:
    """Return the runbook's section about an error's code, or None."""
    found = re.search(rf"^### {re.escape(code)}\n.*?(?=^##|\Z)", runbook, re.MULTILINE | re.DOTALL)
    return found and found[0].rstrip() + "\n"


def _search(texts: Mapping[str, str], words: Sequence[str]) -> list[dict[str, str]]:
    """Return the sections that have all words, those that have them in their titles first."""
    found = []
    background = [path.rpartition("/")[2].lower().removesuffix(".md") for path in _PAGES]
    for page, text in texts.items():
        for section in re.split(r"^(?=#+ )", text, flags=re.MULTILINE):
            title, _, body = section.partition("\n")
            if all(word in section.casefold() for word in words):
                named = sum(word in title.casefold() for word in words)
                lines = (line for line in body.splitlines() if words[0] in line.casefold())
                row = {"page": page, "section": title.lstrip("# "), "line": next(lines, "")[:100]}
                found.append(((-named, page in background), row))
    return [row for _, row in sorted(found, key=lambda each: each[0])]


def _described(name: re.Match[str]) -> str:
    """Return a name's signature and docstring; of a class also those of its methods."""
    try:
        found = pydoc.locate(name[1])
    except (pydoc.ErrorDuringImport, ImportError):  # Spark is not installed
        return f"### {name[1]}"
    shown = {name[1].removeprefix("segstore_ds."): found}
    if inspect.isclass(found):
        ours = [cls for cls in found.__mro__[::-1] if cls.__module__.startswith("segstore_ds")]
        own = {key: each for cls in ours for key, each in vars(cls).items()}
        shown |= {
            f"{found.__name__}.{key}": getattr(found, key)
            for key, each in own.items()
            if key[0] != "_" and (inspect.isroutine(each) or isinstance(each, property))
        }
    return "\n\n".join(itertools.starmap(_entry, shown.items()))


def _entry(name: str, each: Any) -> str:
    call = _call(inspect.signature(each)) if inspect.isroutine(each) else ""
    return f"### {name}\n\n```text\n{name}{call}\n\n{inspect.getdoc(each) or ''}\n```"


def _call(signature: inspect.Signature) -> str:
    """Return a signature without annotations: the docstring describes the arguments."""
    plain = [
        each.replace(
            annotation=each.empty,
            default=each.default
            if each.default is each.empty or isinstance(each.default, _SHOWN)
            else ...,
        )
        for each in signature.parameters.values()
    ]
    shown = signature.replace(parameters=plain, return_annotation=signature.empty)
    return str(shown).replace("Ellipsis", "...")


def demo(
    *,
    folder: Annotated[
        Path | None, "Keep the stream in this folder, which is empty or missing."
    ] = None,
    install_jdk: Annotated[
        bool, "Download a Java into ~/.jdk if there is no suitable one."
    ] = False,
) -> None:
    """Show what segstore does, in under a minute."""
    from segstore_ds.cli.demo import run_demo

    run_demo(folder, install_jdk=install_jdk)


VERBS = (ls, info, history, metrics, show)
LEARN = (docs, demo)
