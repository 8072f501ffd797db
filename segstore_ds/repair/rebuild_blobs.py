"""Rebuild writers, tags and schemas that outgrew the root, from kept versions and segments.

This module writes nothing. A result is proven if it has the digest that the root names: then it is
the lost object itself.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from segstore_ds.errors import FormatError
from segstore_ds.format import names
from segstore_ds.format.operation import Operation
from segstore_ds.format.parts.kinds import SCHEMA, TAGS, WRITERS, encode_object
from segstore_ds.format.root import BlobRef, Epoch, Root, Writer
from segstore_ds.format.schema.codec import encode_schema
from segstore_ds.format.tag import Tag
from segstore_ds.repair.history_facts import HistoryFacts
from segstore_ds.repair.kept_versions import KeptVersions
from segstore_ds.repair.segment_schemas import find_schema
from segstore_ds.status.store import is_proven


@dataclass(frozen=True, slots=True)
class FoundBlob:
    """What was found of a lost blob.

    Attributes:
        data: Its bytes.
        partial: True if `data` lacks something that the lost blob held.
    """

    data: bytes
    partial: bool = False


class BlobRebuilder:
    """Rebuilds the lost blobs of one root; `facts` reads the history when it is needed."""

    def __init__(self, kept: KeptVersions, facts: Callable[[], HistoryFacts]) -> None:
        self._kept = kept
        self._facts = facts

    def find_writers(self, blob: BlobRef) -> FoundBlob | None:
        """Find the writers that one commit moved out of the root; None if they are not known."""
        before, after = self._around(blob)
        if before is None or after is None:
            return self._writers_by_history(blob)
        try:
            old = self._kept.status.writers_blob(before.writers_blob) if before.writers_blob else {}
        except FormatError:
            return self._writers_by_history(blob)
        inline = {**before.writers, **after.writers}
        found: dict[str, Writer] = {n: value for n, value in old.items() if n not in inline}
        found |= {n: value for n, value in inline.items() if n not in after.writers}
        return _judged([(len(found), encode_object(WRITERS, found))], blob)

    def _writers_by_history(self, blob: BlobRef) -> FoundBlob | None:
        """Find writers by the history rows of their last batches; None if a row is missing."""
        made = names.parse_status_version(blob.path) or 0
        last = self._facts().writers(made + 1, blob.count)
        ways: list[bytes] = []
        # The history holds neither owners nor fingerprints.
        for of in (lambda _: "", lambda name: name):
            found = {
                name: Writer(of(name), fact.batch_id, fact.version, fact.rows, fact.tail)
                for name, fact in last.items()
                if fact.batch_id is not None
            }
            if len(found) == blob.count:
                ways.append(encode_object(WRITERS, found))
        proven = [data for data in ways if is_proven(blob, data)]
        if not ways:
            return None
        return FoundBlob((proven or ways)[0], partial=not proven)

    def find_tags(self, blob: BlobRef) -> FoundBlob | None:
        """Find the tags that one commit moved out of the root; None if they are not known."""
        before, after = self._around(blob)
        if before is None or after is None:
            return None
        try:
            tags = self._kept.status.tags(before)
        except FormatError:
            return None
        ways = list(_tags_moved(tags, after))
        return _judged([(len(value), encode_object(TAGS, value)) for value in ways], blob)

    def find_epoch(self, epoch: Epoch, blob: BlobRef) -> FoundBlob | None:
        """Find an epoch's schema in one of its segments; None if no segment can be read.

        No segment stores Spark's own types of the schema. Without them the result is not the lost
        object, unless another epoch has the same ones.
        """
        schema = find_schema(self._kept, epoch.number)
        if schema is None:
            return None
        sparks: list[str | None] = [None]
        for other in self._kept.newest.epochs:
            try:
                sparks.append(self._kept.status.schema_texts(other)[1])
            except FormatError:
                continue
        text = encode_schema(schema)
        made = [encode_object(SCHEMA, (text, spark)) for spark in sparks]
        proven = [data for data in made if is_proven(blob, data)]
        return FoundBlob((proven or made)[0], partial=not proven)

    def _around(self, blob: BlobRef) -> tuple[Root | None, Root | None]:
        """Return the versions before and after the commit that made a blob."""
        made = names.parse_status_version(blob.path) or 0
        return self._kept.at(made), self._kept.at(made + 1)


def _tags_moved(tags: Mapping[str, Tag], behind: Root) -> Iterator[dict[str, Tag]]:
    """Yield what a commit can have moved: all tags except its own, or except the one it removed."""
    yield {name: tag for name, tag in tags.items() if name not in behind.tags}
    if behind.operation == Operation.UNTAG:
        for gone in tags:
            yield {name: tag for name, tag in tags.items() if name != gone}


def _judged(ways: list[tuple[int, bytes]], blob: BlobRef) -> FoundBlob | None:
    """Return the candidate that has the blob's digest, or the only one that has its row count."""
    for _, data in ways:
        if is_proven(blob, data):
            return FoundBlob(data)
    fitting = [data for count, data in ways if count == blob.count]
    return FoundBlob(fitting[0]) if len(fitting) == 1 else None
