"""The numbers of a stream in the text format of Prometheus."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_STREAM = (
    ("events", "Events that the stream holds."),
    ("head", "Offset of the oldest kept event."),
    ("tail", "Offset of the next event."),
    ("version", "Number of the newest commit."),
    ("segments", "Segments that hold the events."),
    ("bytes", "Encoded bytes of these segments."),
    ("retired", "Objects that wait for vacuum."),
    ("versions", "Versions that can be read."),
    ("sealed", "Whether the stream has ended."),
)
_READER = (
    ("behind", "reader_lag_events", "Events that the reader has not passed."),
    ("lost", "reader_lost_events", "Events that were dropped before the reader passed them."),
    ("live", "reader_live", "Whether the reader holds events back."),
)


def prometheus_text(
    url: str, facts: Mapping[str, Any], readers: Sequence[Mapping[str, Any]]
) -> str:
    """Return gauges of a stream and of each reader that was not released. Pure."""
    return "\n".join(_lines(url, facts, [row for row in readers if not row["released"]]))


def _lines(
    url: str, facts: Mapping[str, Any], readers: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    stream = f'stream="{_escaped(url)}"'
    for name, meaning in _STREAM:
        yield from _head(name, meaning)
        yield f"segstore_{name}{{{stream}}} {int(facts[name])}"
    yield from _head("last_commit_timestamp_seconds", "When the newest commit was made.")
    yield f"segstore_last_commit_timestamp_seconds{{{stream}}} {facts['time'].timestamp()}"
    for column, name, meaning in _READER if readers else ():
        yield from _head(name, meaning)
        for row in readers:
            labels = f'{stream},reader="{_escaped(row["name"])}"'
            yield f"segstore_{name}{{{labels}}} {int(row[column])}"


def _head(name: str, meaning: str) -> Iterator[str]:
    yield f"# HELP segstore_{name} {meaning}"
    yield f"# TYPE segstore_{name} gauge"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
