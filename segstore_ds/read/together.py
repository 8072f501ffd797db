"""Streams of a folder that are read together: finds and polls them, and merges their columns.

The folder is listed, and each stream in it is polled, again after a sixteenth of the time since its
last change, at most after `LATE_S` seconds. So requests depend on changes, not on how often a
caller looks: n streams that are idle for long take n / 22 requests a second, and the folder one
listing every 30 seconds, a request for 1,000 names. The first look opens each stream.

An inner folder without a stream is polled like an idle one, since it may get a stream; so is one
with the newest events of another stream. A listing may be stale: a stream is gone only when its own
log says so.
"""

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import pyarrow as pa

from segstore_ds.errors import InvalidInputError, NotFoundError, SchemaMismatchError
from segstore_ds.format.properties import LATEST_OF
from segstore_ds.format.root import Root
from segstore_ds.format.schema.widening import plan_schema
from segstore_ds.log.clock import SYSTEM_CLOCK, Clock
from segstore_ds.log.context import StreamContext, new_context
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.read.cuts import Cut, CutLike, parse_cut
from segstore_ds.read.plan import Reading
from segstore_ds.read.request import Among, plan_reading
from segstore_ds.status.epochs import merge_spark_json, stream_schema
from segstore_ds.storage import Storage, find_inner, open_storage, split_pattern

LATE_S = 30.0  # a new event, or a new stream, is seen within this time
IDLE_SHARE = 16
AT_ONCE = 16
STREAM_COLUMN = "stream"
_CUTS = ("head", "tail", "time", "ago", "eventtime")

Plan = tuple[StreamContext, Root, Reading]


def parse_common_cut(given: CutLike) -> Cut:
    """Parse a cut that has a meaning in every stream."""
    cut = parse_cut(given)
    if cut.kind not in _CUTS:
        raise InvalidInputError(
            "cut is a place in one stream",
            remedy="give 'head', 'tail', a time, or 'eventtime:TIME'",
            cut=given,
        )
    return cut


class _Pace:
    """When to look again: the longer there was no change, the later."""

    def __init__(self) -> None:
        self.changed_s = self.due_s = float("-inf")

    def looked(self, now_s: float, *, changed: bool) -> None:
        """Note a look, and whether it saw a change."""
        if changed or self.changed_s < 0:
            self.changed_s = now_s
        self.due_s = now_s + min((now_s - self.changed_s) / IDLE_SHARE, LATE_S)


class _InnerFolder:
    """A folder in the folder: its stream as it was seen last, if it holds one."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage, self._clock = storage, clock
        self.pace = _Pace()
        self.root: Root | None = None
        self.context = new_context(StreamLog(storage, clock=clock))

    def ask(self, *, acknowledged: bool) -> None:
        """Look for a change; after a drop, the next call finds a stream created in its place."""
        before, now_s = self.root, self._clock.boot_s()
        try:
            self.root = self._find(acknowledged=acknowledged)
        except NotFoundError:
            self.root, self.context = None, new_context(StreamLog(self._storage, clock=self._clock))
        self.pace.looked(now_s, changed=self.root is not before)

    def _find(self, *, acknowledged: bool) -> Root | None:
        newest, shown = self.context.log.follow(), self.root
        if LATEST_OF in newest.properties:
            return None
        if shown is not None and shown.transaction == newest.transaction:
            return shown
        found = self.context.log.acknowledged() if acknowledged else newest
        return shown if shown is not None and shown.transaction == found.transaction else found


class StreamFolder:
    """The streams in a folder whose names fit a pattern; sends no request before `look`."""

    def __init__(
        self,
        storage: Storage,
        pattern: str,
        *,
        acknowledged: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.url, self.clock = f"{storage.url}/{pattern}", clock
        self._storage, self._pattern, self._acknowledged = storage, pattern, acknowledged
        self._fits = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL).fullmatch
        self._pace, self._listed = _Pace(), frozenset[str]()
        self._inner: dict[str, _InnerFolder] = {}

    @classmethod
    def open(
        cls,
        url: str,
        storage_options: Mapping[str, Any] | None,
        *,
        single_writer: bool,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Self:
        """Open the folder that a location names, with a pattern; sends no request."""
        found = split_pattern(url)
        if found is None:
            raise InvalidInputError(
                "location names one stream, not several",
                remedy="end it with a pattern, such as /*, or open the stream",
                url=url,
            )
        storage = open_storage(found[0], storage_options, single_writer=single_writer)
        return cls(storage, found[1], clock=clock)

    def inner(self, name: str) -> Storage:
        """Return the folder of a stream; sends no request."""
        return self._storage.sibling(find_inner(self._storage.url, name) or "")

    def apart(self, *, acknowledged: bool) -> Self:
        """Return the same folder, as before the first look."""
        return type(self)(self._storage, self._pattern, acknowledged=acknowledged, clock=self.clock)

    def look(self, *, whole: bool = False) -> None:
        """Look for new streams and events where a look is due; with `whole`, everywhere."""
        now_s = self.clock.boot_s()
        if whole or self._pace.due_s <= now_s:
            names = frozenset(filter(self._fits, self._storage.folders("")))
            self._pace.looked(now_s, changed=names != self._listed)
            self._listed = names
            for name in names - self._inner.keys():
                if find_inner(self._storage.url, name) is not None:
                    self._inner[name] = _InnerFolder(self.inner(name), self.clock)
        due = [one for one in self._inner.values() if whole or one.pace.due_s <= now_s]

        def ask(inner: _InnerFolder) -> None:
            inner.ask(acknowledged=self._acknowledged)

        if len(due) > 1 and self._storage.profile.is_far:
            with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="segstore-look") as threads:
                list(threads.map(ask, due))
        else:
            for inner in due:
                ask(inner)
        for name in self._inner.keys() - self._listed:
            if self._inner[name].root is None:
                del self._inner[name]

    @property
    def streams(self) -> dict[str, tuple[StreamContext, Root]]:
        """The streams by name, as the last `look` saw them."""
        inner = sorted(self._inner.items())
        return {name: (one.context, one.root) for name, one in inner if one.root is not None}

    def whole(self) -> dict[str, tuple[StreamContext, Root]]:
        """Look everywhere and return the streams.

        Raises:
            NotFoundError: There is none.
        """
        self.look(whole=True)
        if not (found := self.streams):
            raise NotFoundError("no streams", remedy="check folder and pattern", url=self.url)
        return found


@dataclass(frozen=True)
class Together:
    """Several streams, each at one version; `column` is the column of their names.

    The merged schema has `columns` in any case.
    """

    streams: Mapping[str, tuple[StreamContext, Root]]
    column: str = STREAM_COLUMN
    columns: pa.Schema | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of all streams, merged by name to types that hold the values of each.

        Raises:
            SchemaMismatchError: No type holds the values of a column in two streams.
            InvalidInputError: A stream has a column with the name of `column`.
        """
        merged, owners = self.columns or pa.schema([]), dict[str, str]()
        for name, (schema, _) in self._own.items():
            if self.column in schema.names:
                raise InvalidInputError(
                    "a stream has a column with the name of the stream column",
                    remedy="choose another name as stream_column",
                    column=self.column,
                    stream=name,
                )
            try:
                merged = plan_schema(merged, schema, merge=True)
            except SchemaMismatchError as error:
                raise _clash(error, name, owners) from error
            for one in schema.names:
                owners.setdefault(one, name)
        return merged

    @property
    def spark_schema(self) -> str | None:
        """Spark's JSON of the columns whose type is that of some stream."""
        return merge_spark_json(self.schema, [*self._own.values()])

    @cached_property
    def _own(self) -> dict[str, tuple[pa.Schema, str | None]]:
        """The columns of each stream; only the first of streams with equal columns."""
        seen, found = set(), {}
        for name, (context, root) in self.streams.items():
            texts = context.status.schema_texts(root.epoch)
            if (key := (*texts, *root.epoch.names.items())) not in seen:
                seen.add(key)
                found[name] = (stream_schema(context.status, root), texts[1])
        return found

    def plan(
        self,
        start: CutLike = "head",
        end: CutLike = "tail",
        *,
        spans: Mapping[str, tuple[int, int]] | None = None,
        **how: Any,
    ) -> list[Plan]:
        """Plan to read each stream between two cuts, or the streams of `spans` between offsets.

        `how` goes to `plan_reading`. If the filters rule out a stream's name, its range is empty.
        """
        for cut in (start, end):
            parse_common_cut(cut)
        found = []
        for name in self.streams if spans is None else spans:
            context, root = self.streams[name]
            bounds = (start, end) if spans is None else spans[name]
            among = Among(self.schema, self.column, name)
            found.append((context, root, plan_reading(context, root, *bounds, among=among, **how)))
        return found


def _clash(error: SchemaMismatchError, name: str, owners: Mapping[str, str]) -> SchemaMismatchError:
    """Return the error that also names the stream that had the column first."""
    place = str(error.fields.get("stream_column", error.fields["column"]))
    others = [own for one, own in owners.items() if f"{place}.".startswith(f"{one}.")]
    return SchemaMismatchError(
        f"columns of two streams do not fit together: {error.fact}",
        remedy="rename or replace the column in one of them, or read them one by one",
        **error.fields,
        stream=name,
        other_stream=others[0] if others else "as read before",
    )
