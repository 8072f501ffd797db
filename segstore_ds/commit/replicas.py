"""Replicas: shipping a stream's commits to its followers, which are the same folder byte for byte.

The primary's log decides every race. Then the objects that the commit names and the very bytes of
its commit file go to each follower, at the same version, and only then is it acknowledged. Who
commits next ships first what is missing. A follower takes a version only behind the one before it,
by exclusive create, so what it holds is always a whole, readable version of the stream.

That one name is the fence, too: `promote` takes the follower's next version for a root of a new
generation. A commit of the old primary then meets other bytes there and is never acknowledged,
whatever it knows and whenever it wakes up.

A folder is written to as a follower only if its log holds this very stream: a damaged or malicious
root can't have anything written elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from segstore_ds.commit.objects import (
    copy_object,
    copy_small,
    missing_segments,
    new_segments,
    new_status,
)
from segstore_ds.errors import (
    CorruptionError,
    FencedError,
    FormatError,
    MissingObjectError,
    SegstoreError,
    StorageError,
    UnderReplicatedError,
)
from segstore_ds.format import names
from segstore_ds.format.fields import parse_json
from segstore_ds.format.root import Root
from segstore_ds.log.clock import Clock
from segstore_ds.log.metadata_log import Codec, MetadataLog
from segstore_ds.log.seen import lost_commits
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Storage

PROPERTY = "replication"  # On disk. Never change.
HINT_EVERY = 16
_NONE: Mapping[str, frozenset[str]] = {}


@dataclass(frozen=True, slots=True)
class Replication:
    """Which folder takes commits, and which follow it."""

    primary: str
    followers: tuple[str, ...]


def replication_of(root: Root) -> Replication | None:
    """Return who replicates a stream as of a root; None where nobody does.

    Raises:
        CorruptionError: The property can't be read.
    """
    text = root.properties.get(PROPERTY)
    if text is None:
        return None
    value = parse_json(text.encode(), where=PROPERTY)
    match value:
        case {"primary": str(primary), "followers": [*urls]} if all(
            isinstance(url, str) for url in urls
        ):
            return Replication(primary, tuple(urls))
    raise CorruptionError("replication can't be read", property=text)


def followers_of(root: Root) -> tuple[str, ...]:
    """Return the followers that a root names; raises as `replication_of`."""
    known = replication_of(root)
    return known.followers if known else ()


@dataclass(frozen=True, slots=True)
class ShipTo:
    """Where buffers go besides the stream's own folder; picklable.

    Attributes:
        stream_id: The stream, which the followers were seen to hold.
        followers: Their locations.
    """

    stream_id: str
    followers: tuple[str, ...]


class Replicas:
    """The followers of one stream, as one handle's log sees them.

    Args:
        storage: The primary's folder.
        files: Its log.
        codec: How a root is written.
        clock: Time and waiting.
    """

    def __init__(
        self, storage: Storage, files: MetadataLog[Root], codec: Codec[Root], clock: Clock
    ) -> None:
        self._storage = storage
        self._files = files
        self._codec = codec
        self._clock = clock
        self._followers: dict[str, Follower] = {}

    def of(self, root: Root) -> list["Follower"]:
        """Return the followers that a root names; sends no request.

        Raises:
            CorruptionError: The property can't be read.
            InvalidInputError: A follower's location can't be opened.
        """
        known = replication_of(root)
        return [self._open(url) for url in known.followers] if known else []

    def ready(self, root: Root) -> ShipTo | None:
        """Return the followers that may be sent what is staged on a root: they hold that root.

        One that does not, or can't be asked, gets its objects with the commit.

        Raises:
            CorruptionError: The property can't be read.
            InvalidInputError: A follower's location can't be opened.
        """
        urls = tuple(follower.url for follower in self.of(root) if follower.holds(root))
        return ShipTo(root.stream_id, urls) if urls else None

    def check_primary(self, root: Root) -> None:
        """Refuse to commit through a folder that is not the primary.

        Raises:
            FencedError: It is a follower, or was moved.
        """
        known = replication_of(root)
        if known is not None and known.primary != self._storage.url:
            raise FencedError(
                "this folder follows another",
                remedy="write to the primary; if that is lost, promote() makes this one primary",
                url=self._storage.url,
                primary=known.primary,
            )

    def prepare(self, base: Root, planned: Root) -> None:
        """Ship what followers lack below a commit that is about to be made.

        Raises:
            FencedError: A follower was promoted.
            MissingObjectError: A follower holds commits that are gone here.
            StorageError: One can't be brought up to date; nothing was committed.
        """
        for follower in self.of(planned):
            try:
                self._bring_up(follower, base, _NONE)
            except FencedError:
                raise
            except (StorageError, FormatError) as error:
                raise StorageError(
                    "a follower can't be brought up to date, and nothing was committed",
                    remedy="mend it, or go on without it: remove_follower(url)",
                    follower=follower.url,
                    version=base.version,
                ) from error
            self._refuse_ahead(follower, base)

    def _refuse_ahead(self, follower: "Follower", base: Root) -> None:
        """Refuse to commit where a follower holds what the primary's log has lost.

        Raises:
            MissingObjectError: It does; nothing was committed.
        """
        theirs = follower.known
        # A base that is merely behind loses its race: what the follower holds is in the log.
        if theirs is None or theirs.version <= base.version or self._files.exists(theirs.version):
            return
        raise lost_commits(
            self._storage.url,
            version=theirs.version,
            newest=base.version,
            witness=f"follower {follower.url}",
        )

    def ship(
        self,
        root: Root,
        shipped: Mapping[str, frozenset[str]] = _NONE,
        *,
        prepared: bool = False,
    ) -> None:
        """Bring every follower up to a committed root.

        Args:
            root: The root, which is in the primary's log.
            shipped: Segments, and the followers that took every buffer of them.
            prepared: The followers were asked for the root before it a moment ago.

        Raises:
            FencedError: A follower was promoted: the commit is in a log that nobody follows.
            UnderReplicatedError: The commit is in the log, but not with every follower.
        """
        missing: dict[str, SegstoreError] = {}
        for follower in self.of(root):
            try:
                self._bring_up(follower, root, shipped, prepared=prepared)
            except FencedError:
                raise
            except (StorageError, FormatError) as error:
                missing[follower.url] = error
        if missing:
            raise UnderReplicatedError(
                "the commit is in the log, but not with every follower",
                remedy="do not write it again: the next commit ships it first; mend the follower, "
                "or remove_follower(url)",
                version=root.version,
                transaction=root.transaction,
                followers=sorted(missing),
            ) from next(iter(missing.values()))

    def _open(self, url: str) -> "Follower":
        if url not in self._followers:
            self._followers[url] = Follower(self._storage.sibling(url), self._codec, self._clock)
        return self._followers[url]

    def _bring_up(
        self,
        follower: "Follower",
        root: Root,
        shipped: Mapping[str, frozenset[str]],
        *,
        prepared: bool = False,
    ) -> None:
        before = follower.newest(root, asked=prepared)
        if before.version >= root.version:
            return
        self._check_ours(follower, before, root)
        status = TableStatus(self._storage)
        for version in range(before.version + 1, root.version + 1):
            after = root if version == root.version else self._files.get(version)
            if after is None:
                raise MissingObjectError(
                    "a version that a follower lacks was purged",
                    remedy="remove_follower(url), then add it again in an empty folder",
                    follower=follower.url,
                    version=version,
                )
            told = {path for path, urls in shipped.items() if follower.url in urls}
            for path in new_status(status, before, after):
                copy_small(self._storage, follower.storage, path)
            segments = new_segments(status, before, after)
            for path in missing_segments(follower.storage, segments, told):
                copy_object(self._storage, follower.storage, path)
            follower.add(after)
            before = after

    def _check_ours(self, follower: "Follower", theirs: Root, root: Root) -> None:
        if theirs.version == root.version - 1:
            same = theirs.transaction == root.parent
        else:
            ours = self._files.get(theirs.version)
            same = ours is None or ours.transaction == theirs.transaction
        if not same:
            raise follower.fenced(root)


class Follower:
    """One follower: its storage, and the newest version that it is known to hold.

    Args:
        storage: Its folder.
        codec: How a root is written.
        clock: Time and waiting.
    """

    def __init__(self, storage: Storage, codec: Codec[Root], clock: Clock) -> None:
        self.storage = storage
        self.files = MetadataLog(storage, names.LOG_FOLDER, codec, clock=clock)
        self._known: Root | None = None

    @property
    def url(self) -> str:
        """Its location."""
        return self.storage.url

    @property
    def known(self) -> Root | None:
        """The newest root that it was seen to hold."""
        return self._known

    def holds(self, root: Root) -> bool:
        """Tell whether it holds a root, or did a while ago; False too where it can't be asked."""
        try:
            known = self._known
            if known is None or known.transaction != root.transaction:
                known = self.newest(root)
        except (StorageError, FormatError, FencedError):
            return False
        return known.transaction == root.transaction

    def newest(self, root: Root, *, asked: bool = False) -> Root:
        """Return the newest root that it holds.

        What is remembered counts while its file is there: a folder may vanish, and be made again.

        Args:
            root: The root that it is to hold.
            asked: What is remembered was there a moment ago.

        Raises:
            FencedError: It holds another commit in the place of `root`, or a newer generation.
            MissingObjectError: It holds no such stream, or not all of its log.
            FormatError: Its log can't be read.
            StorageError: It can't be reached.
        """
        known = self._known
        if known is not None and known.version in (root.version - 1, root.version):
            ours = root.transaction if known.version == root.version else root.parent
            if known.transaction == ours and (asked or self.files.exists(known.version)):
                return known
        self._known = None
        numbers = self.files.numbers()
        found = self.files.get(numbers[-1]) if numbers else None
        if found is None or found.stream_id != root.stream_id:
            raise MissingObjectError(
                "the folder of a follower holds no such stream",
                remedy="remove_follower(url), then add it again in an empty folder",
                follower=self.url,
                stream=root.stream_id,
            )
        if found.generation > root.generation:
            raise self.fenced(root)
        if numbers[0] > max(root.log_start, found.log_start):
            raise self._holed(numbers[0])
        if found.version >= root.version:
            same = found if found.version == root.version else self.files.get(root.version)
            if same is not None and same.transaction != root.transaction:
                raise self.fenced(root)
        self._known = found
        return found

    def add(self, root: Root) -> None:
        """Put the commit file of a root behind the one that it holds.

        Raises:
            FencedError: Another commit lies there.
            MissingObjectError: The one before it is gone: the folder vanished meanwhile.
            StorageError: It can't be reached, or never said whether the file is there.
        """
        self._known = None
        try:
            ours = self.files.add(root.version, root)
        except StorageError:
            raise
        except SegstoreError as error:
            raise StorageError("follower never answered", follower=self.url) from error
        if not ours:
            raise self.fenced(root)
        # In an emptied folder any name is free, so what was put says nothing without this.
        if root.version > root.log_start and not self.files.exists(root.version - 1):
            raise self._holed(root.version)
        self._known = root
        if root.version % HINT_EVERY == 0:
            self.files.write_hint(
                root.version, generation=root.generation, stream_id=root.stream_id
            )

    def _holed(self, version: int) -> MissingObjectError:
        return MissingObjectError(
            "a follower's log has a hole",
            remedy="remove_follower(url), then add it again in an empty folder",
            follower=self.url,
            version=version,
        )

    def fenced(self, root: Root) -> FencedError:
        """Return the error for a primary whose place was taken."""
        return FencedError(
            "a follower went its own way: it was promoted, and this folder is primary no more",
            remedy="write to the promoted stream; what was not acknowledged here is not in it",
            follower=self.url,
            version=root.version,
            transaction=root.transaction,
        )
