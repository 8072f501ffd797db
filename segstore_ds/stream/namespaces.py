"""What belongs to a stream by name: its tags, readers, followers, pins, tables and settings.

Each shows the newest version that the handle has seen, and has the methods that change it.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from segstore_ds.compact.run import add_bounds
from segstore_ds.copy.pins import run_unpin
from segstore_ds.errors import FormatError
from segstore_ds.format.bloom import has_filter
from segstore_ds.format.copies import Pin, pins_of
from segstore_ds.format.indexed_columns import (
    KEY_COLUMNS,
    build_key_columns,
    build_time_column,
    find_time_field,
    key_columns_of,
    time_column_of,
)
from segstore_ds.format.names import check_label
from segstore_ds.format.policies import (
    RETENTION_PROPERTY,
    UPKEEP_PROPERTY,
    RetentionPolicy,
    Rules,
    UpkeepPolicy,
    build_rules,
    build_upkeep,
    rules_of,
    upkeep_of,
)
from segstore_ds.format.redactions import EXPIRY_PROPERTY, Expiry, build_expiry, expiry_of
from segstore_ds.format.root import RULES_PROPERTY, TIME_COLUMN, Tag
from segstore_ds.log.context import StreamContext
from segstore_ds.observe.page import show_rows
from segstore_ds.options.table import TABLE_FORMATS, TableFormat
from segstore_ds.publish.auto import (
    PROPERTY,
    auto_publish_of,
    build_auto_publish,
    run_set_auto_publish,
)
from segstore_ds.publish.latest import latest_tables
from segstore_ds.publish.life import codec_of, published, run_unpublish
from segstore_ds.publish.snapshot import Published
from segstore_ds.read.cuts import CutLike, parse_cut
from segstore_ds.read.metadata_tables import open_table
from segstore_ds.read.reader_records import SeenReader, each_reader, no_such_reader
from segstore_ds.redact.expire import parse_expiry
from segstore_ds.redact.plan import refuse_time_column
from segstore_ds.replication.follower import followers_of
from segstore_ds.replication.followers import run_add_follower, run_promote, run_remove_follower
from segstore_ds.retention.readers import (
    LAPSE_S,
    NamedReader,
    register_reader,
    release_reader,
    reset_reader,
)
from segstore_ds.retention.retain import build_retention, policy_of
from segstore_ds.retention.tags import run_tag, run_untag
from segstore_ds.status.epochs import called_columns, epoch_schema, stream_schema
from segstore_ds.stream.latest_table import remove_latest
from segstore_ds.write.create import run_set_properties
from segstore_ds.write.letters import open_letters
from segstore_ds.write.rules import parse_rules


class Keep(enum.Enum):
    """The type of `KEEP`, the value of a setting that stays as it is."""

    KEEP = "keep"


KEEP: Final = Keep.KEEP


class Tags(dict[str, Tag]):
    """The named cuts of a stream, by name."""

    def __init__(self, context: StreamContext) -> None:
        super().__init__(sorted(context.log.root.tags.items()))
        self._context = context

    def set(
        self, name: str, cut: CutLike = "tail", *, move: bool = False, keep: bool = False
    ) -> Tag:
        """Give a cut a name; from then on `tag:NAME` is accepted wherever a cut is.

        `retain` keeps the events from a tag on. Safe to repeat.

        Args:
            name: Letters, digits, dots, dashes and underscores.
            cut: Any form of cut, resolved once.
            move: Allow a tag of that name to move here.
            keep: Keep the version that this commits, whose tail is the cut, until the tag is
                removed: `as_of="tag:NAME"` reads the same events whatever `truncate`, `retain`,
                an overwrite or upkeep do. It does not hold `retain` back. While a version is kept,
                `redact` and rules of expiry are refused.

        Raises:
            AlreadyExistsError: The tag names another cut.
            InvalidInputError: Not a name or not a cut, too many tags, or nothing to keep: the
                stream shares events with its origin, or its values expire.

        Examples:
            >>> stream.tags.set("launch", 1).offset
            1
            >>> stream.scan("tag:launch").count()
            2
            >>> _ = stream.tags.set("v1", keep=True)
            >>> _ = stream.truncate("tail")
            >>> stream.scan(as_of="tag:v1").count()
            3
        """
        return run_tag(self._context, name, parse_cut(cut), move=move, keep=keep)

    def delete(self, name: str) -> None:
        """Remove a tag.

        Raises:
            NotFoundError: There is no such tag.

        Examples:
            >>> _ = stream.tags.set("launch", 1)
            >>> stream.tags.delete("launch")
        """
        run_untag(self._context, name)


class Readers:
    """The named readers of a stream, released and lapsed ones too.

    A loop gives the newest record of each, ordered by name; a notebook shows them as a table. Each
    loop reads them again.
    """

    def __init__(self, context: StreamContext) -> None:
        self._context = context

    def __iter__(self) -> Iterator[SeenReader]:
        return (seen for _, seen in each_reader(self._context) if isinstance(seen, SeenReader))

    def __getitem__(self, name: str) -> SeenReader:
        """Return the newest record of one reader; a NotFoundError if there is none."""
        seen = dict(each_reader(self._context)).get(check_label(name, what="reader"))
        if seen is None:
            raise no_such_reader(self._context, name)
        if isinstance(seen, FormatError):
            raise seen
        return seen

    def __contains__(self, name: object) -> bool:
        return any(seen.name == name for seen in self)

    def __repr__(self) -> str:
        shown = (f"{seen.name} at {seen.record.offset}" for seen in self)
        return f"Readers({', '.join(shown)})"

    @property
    def damaged(self) -> dict[str, FormatError]:
        """The readers whose newest records can't be read, each with the error."""
        found = each_reader(self._context)
        return {name: seen for name, seen in found if isinstance(seen, FormatError)}

    def register(
        self,
        name: str,
        *,
        owner: str = "",
        start: CutLike | None = None,
        lapse_s: int = LAPSE_S,
        takeover: bool = False,
        provisional: bool = False,
    ) -> NamedReader:
        """Register a named reader, or continue with the one of that owner.

        Once it returns, `retain` keeps the events from the reader's position on, until the reader
        is released, or publishes nothing for `lapse_s`. `reader:NAME` is accepted wherever a cut
        is.

        Args:
            name: Letters, digits, dots, dashes and underscores.
            owner: Who may publish under the name; one reader, one owner.
            start: The first event it needs; None for the position published last, or the head. One
                before that position is a `reset`: a process that reads under the name now ends.
            lapse_s: After this many seconds without publication or renewal, by the store's time, it
                holds nothing back.
            takeover: Take the name over from another owner, or after a release, at its last
                position.
            provisional: Let another owner take the name until the next publication.

        Raises:
            ReaderConflictError: The name belongs to another owner.

        Examples:
            >>> reader = stream.readers.register("warehouse")
            >>> reader.publish(2)  # events below 2 are done
            >>> stream.scan("reader:warehouse").count()
            1
        """
        return register_reader(
            self._context,
            name,
            owner=owner,
            start=None if start is None else parse_cut(start),
            lapse_s=lapse_s,
            takeover=takeover,
            provisional=provisional,
        )

    def reset(self, name: str, cut: CutLike) -> None:
        """Move a named reader to a cut, whatever its owner.

        A process that reads under the name now can't undo it: its next publication raises a
        ReaderConflictError that says to start again. A streaming query restarts at its checkpoint.

        Raises:
            NotFoundError: There is no such reader.
            TruncatedError: The cut is below the head.
            ReaderConflictError: Members share the reader: stop them first.

        Examples:
            >>> _ = stream.readers.register("warehouse", start="tail")
            >>> stream.readers.reset("warehouse", "head")
            >>> stream.scan("reader:warehouse").count()
            3
        """
        reset_reader(self._context, name, parse_cut(cut))

    def release(self, name: str) -> bool:
        """Release a named reader, whatever its owner; False if there is none to release.

        Examples:
            >>> stream.readers.release("nobody")
            False
        """
        return release_reader(self._context, name)

    def _repr_html_(self) -> str:
        rows = open_table(self._context, "readers", self._context.log.refresh())
        return show_rows(rows.read_all().to_pylist())


class Followers(tuple[str, ...]):  # noqa: SLOT001 - a tuple takes none
    """The folders that follow a stream, by location."""

    _context: StreamContext

    @classmethod
    def of(cls, context: StreamContext) -> "Followers":
        """Return those of the newest version seen."""
        made = cls(followers_of(context.log.root))
        made._context = context
        return made

    def add(self, url: str) -> None:
        """Keep a second copy of the whole stream in another folder, from now on.

        Once it returns, every commit of any writer is acknowledged only when the follower has
        it too. A follower can be read like any stream; commits through it are refused until
        `promote`. Safe to repeat.

        Args:
            url: An empty folder, opened with this stream's storage options.

        Raises:
            AlreadyExistsError: The folder holds another stream.
            InvalidInputError: The stream's own folder under any name, one inside or around it, or
                one that can't be opened.
            FencedError: This folder is a follower itself, or one of its followers was promoted.
            StorageError: Also if another follower can't be brought up to date.

        Examples:
            >>> stream.followers.add("second")
            >>> segstore.open("second").tail
            3
        """
        run_add_follower(self._context, url)

    def remove(self, url: str, *, allow_promoted: bool = False) -> None:
        """Continue without a follower; its folder stays. Safe to repeat.

        The follower is read first: if it was promoted, this stream would take commits beside it.

        Args:
            url: The follower.
            allow_promoted: Do not ask it, since it is lost. If it was promoted, two streams
                continue under one id.

        Raises:
            FencedError: It was promoted.
            StorageError: It can't be read.
            MissingObjectError: It holds commits that this stream has lost: repair the stream first.
            CorruptionError: It is so damaged that it does not say whether it was promoted.

        Examples:
            >>> stream.followers.add("second")
            >>> stream.followers.remove("second")
        """
        run_remove_follower(self._context, url, allow_promoted=allow_promoted)

    def promote(self) -> int:
        """Make this follower a primary, when the old one is lost or given up. Safe to repeat.

        A follower holds every acknowledged commit. Once this returns, the old primary can
        acknowledge nothing any more, even if it comes back. Earlier positions are refused, since
        commits that the old primary did not acknowledge may be missing here. Followers must be
        added again.

        Returns:
            The generation.

        Raises:
            FencedError: Another follower was promoted; one that can't be reached is not read.

        Examples:
            >>> stream.followers.add("second")
            >>> segstore.open("second").followers.promote()
            1
        """
        return run_promote(self._context).root.generation


class Pins(dict[str, Pin]):
    """The versions that clones of a stream need, by copy id."""

    def __init__(self, context: StreamContext) -> None:
        super().__init__(pins_of(context.log.root))
        self._context = context

    def release(self, name: str) -> None:
        """Remove a clone's pin: upkeep may then delete what the clone reads.

        Use it for clones that are gone; drop or materialize other clones instead.

        Raises:
            NotFoundError: There is no such pin.

        Examples:
            >>> _ = stream.copy_to("clone", copy_id="test", mode="clone")
            >>> for name in stream.refresh().pins:
            ...     stream.pins.release(name)
        """
        run_unpin(self._context, name)


class PublishedTables(Mapping[TableFormat, Published]):
    """The tables that a stream is published as: what each shows, what it lacks and why.

    Each access reads the table's newest commit.
    """

    def __init__(self, context: StreamContext) -> None:
        self._context = context

    def __getitem__(self, format: TableFormat) -> Published:  # noqa: A002 - as in `publish`
        self._context.log.refresh()
        found = published(self._context, format)
        if found is None:
            raise KeyError(format)
        return found

    def __iter__(self) -> Iterator[TableFormat]:
        return (each for each in TABLE_FORMATS if self.get(each) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"PublishedTables({dict(self)})"

    def remove(self, format: TableFormat) -> int:  # noqa: A002 - as in `publish`
        """Delete a table's metadata and its own files, never the stream's.

        Commits no longer publish it. Repeat a call that failed: until then, what it left may count
        as a damaged table.

        Returns:
            How many objects were deleted; 0 if there was no table.

        Raises:
            InvalidInputError: The table is not the stream's; nothing was deleted.

        Examples:
            >>> _ = stream.publish("iceberg", settle=True)
            >>> stream.published.remove("iceberg") > 0
            True
        """
        codec_of(format)
        run_set_auto_publish(self._context, format, on=False)
        return run_unpublish(self._context, format)

    @property
    def latest(self) -> Mapping[str, Published]:
        """The tables of the newest event of each key, by format."""
        self._context.log.refresh()
        return {found.format: found for found in latest_tables(self._context)}

    def remove_latest(self) -> int:
        """Delete the tables of the newest events, and the stream that holds these; safe to repeat.

        Returns:
            How many objects were deleted.

        Examples:
            >>> _ = stream.publish("delta", latest_by=["user"])
            >>> stream.published.remove_latest() > 0
            True
        """
        return remove_latest(self._context)


SETTINGS = ("key_columns", "time_column", "rules", "retention", "expiry", "upkeep", "publish")


class Settings:
    """The rules of a stream, for all of its writers."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context

    def __repr__(self) -> str:
        known = {name: getattr(self, name) for name in SETTINGS}
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in known.items())})"

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns by whose values events are looked up, as far as a new schema left them."""
        root = self._context.log.root
        types = {field.name: field.type for field in epoch_schema(self._context.status, root.epoch)}
        return tuple(
            self._called(name)
            for name in key_columns_of(root)
            if name in types and has_filter(types[name])
        )

    @property
    def time_column(self) -> str | None:
        """The column with each event's time; None if there is none.

        It is None, too, if a new schema removed the column or changed its type.
        """
        root = self._context.log.root
        field = find_time_field(root, epoch_schema(self._context.status, root.epoch))
        return None if field is None else self._called(field.name)

    @property
    def rules(self) -> Rules | None:
        """What events must satisfy to be appended; None for none."""
        found = rules_of(self._context.log.root)
        return found and replace(found, not_null=tuple(map(self._called, found.not_null)))

    @property
    def retention(self) -> RetentionPolicy | None:
        """Which events committers drop; None for none."""
        return policy_of(self._context.log.root)

    @property
    def expiry(self) -> tuple[Expiry, ...]:
        """The rules by which values of columns become null."""
        rules = expiry_of(self._context.log.root)
        return tuple([replace(rule, column=self._called(rule.column)) for rule in rules])

    def _called(self, stored: str) -> str:
        """Return the name of a column by its stored name, which properties have."""
        return self._context.log.root.epoch.names.get(stored) or stored

    @property
    def upkeep(self) -> UpkeepPolicy | None:
        """What upkeep after commits keeps; None if there is no upkeep."""
        return upkeep_of(self._context.log.root)

    @property
    def publish(self) -> tuple[str, ...]:
        """The formats whose tables commits keep up to date."""
        return auto_publish_of(self._context.log.root)

    def update(
        self,
        *,
        key_columns: Sequence[str] | Keep | None = KEEP,
        time_column: str | Keep | None = KEEP,
        rules: Rules | Mapping[str, Any] | Keep | None = KEEP,
        retention: RetentionPolicy | Mapping[str, Any] | Keep | None = KEEP,
        expiry: Mapping[str, Any] | Keep | None = KEEP,
        upkeep: UpkeepPolicy | Keep | None = KEEP,
        publish: Sequence[TableFormat] | Keep = KEEP,
    ) -> None:
        """Change settings in one commit; those that are not given stay. Safe to repeat.

        Args:
            key_columns: Columns by whose values events are looked up, such as a user's id; not
                floats or nested types. None or an empty list ends it. From now on every frame of a
                new segment gets a Bloom filter on each, and reads with a filter ``==`` or ``in`` on
                one skip frames that certainly hold no such value. Existing segments get filters
                when a compaction rewrites them, and are read until then.
            time_column: The column of timestamps, dates or numbers with each event's time, by which
                events are found; None ends it. From now on every new segment and frame keeps its
                bounds. Existing segments get them when a compaction rewrites them, and are read
                until then; this call reads their lists once.
            rules: What events must satisfy to be appended from now on, by any writer; None for
                nothing: ``{"not_null": ["user"], "checks": {"positive": "n > 0"}}``. A check is a
                filter as a text, which must not be false; if a null makes it unknown, it passes.
                A write with an event that breaks one is refused, and none of it is committed. With
                ``"dead_letters": url`` such events of a writer's batch go to that stream, which is
                created if it is missing, in the form of `follow`'s dead letters.
            retention: A policy, or a dict such as ``{"max_age": "7d"}``, that every committer
                applies after its commits, about once a minute; None ends it. A failure to apply it
                is logged, and no commit fails.
            expiry: How old an event's values may get, by column: ``{"email": "30d"}``, or of some
                events ``{"email": {"age": "30d", "filters": "plan == 'free'"}}``; None ends it.
                Rounds after commits set older values to null for good, as `redact` does, at the
                latest a thirty-second of the age later. The age is that of the event's time, if
                there is a time column of dates or of timestamps with a zone; else its commit's.
            upkeep: What the upkeep after commits keeps; None ends it. It forgets old versions and
                deletes what nothing needs, in rounds in the background.
            publish: The formats whose tables commits keep up to date, as `publish(auto=True)`.

        Results of reads never depend on key columns or the time column.

        Examples:
            >>> stream.settings.update(key_columns=["user"], retention={"max_age": "30d"})
            >>> stream.settings.key_columns, stream.settings.retention.max_age
            (('user',), 2592000)
        """
        context = self._context
        root = context.log.refresh()
        stored = epoch_schema(context.status, root.epoch)
        schema = stream_schema(context.status, root)
        columns = called_columns(context.status, root.epoch)
        own = {called: name for name, called in columns.items()}
        texts: dict[str, str | None] = {}
        if key_columns is not KEEP:
            texts[KEY_COLUMNS] = build_key_columns(key_columns, schema, own)
        if rules is not KEEP:
            texts[RULES_PROPERTY] = _build_rules(context, parse_rules(rules, schema, own), schema)
        field, expiring = find_time_field(root, stored), expiry_of(root)
        if time_column is not KEEP:
            texts[TIME_COLUMN] = build_time_column(time_column, schema, own)
            field = None if time_column is None else stored.field(own[time_column])
        if retention is not KEEP:
            texts[RETENTION_PROPERTY] = build_retention(retention, field)
        if expiry is not KEEP:
            given = parse_expiry(expiry or {}, schema)
            expiring = tuple([replace(rule, column=own[rule.column]) for rule in given])
            texts[EXPIRY_PROPERTY] = build_expiry(expiring)
            if field is None and time_column_of(root) in {rule.column for rule in expiring}:
                texts[TIME_COLUMN] = None  # it is no time column now, and must not become one again
        refuse_time_column([rule.column for rule in expiring], field and field.name)
        if upkeep is not KEEP:
            texts[UPKEEP_PROPERTY] = build_upkeep(upkeep)
        if publish is not KEEP:
            texts[PROPERTY] = build_auto_publish({codec_of(each).KIND for each in publish})
        run_set_properties(context, texts, epoch=root.epoch.number)
        if time_column is not KEEP:
            add_bounds(context)


def _build_rules(context: StreamContext, rules: Rules, schema: pa.Schema) -> str | None:
    if rules.dead_letters is not None:
        letters = open_letters(context, rules.dead_letters, schema)
        rules = replace(rules, dead_letters=letters.storage.url)
    return build_rules(rules)
