"""Rules between two successive roots, checked before every add (FORMAT.md 3.2).

Each object of a stream has one life: it is staged, a commit lists it, another commit drops it,
which retires it, and upkeep deletes it. Only `restore` goes back, while the object still exists.

Pure. A violation is a bug in this package: it raises InternalError, and nothing is written.
"""

from collections.abc import Callable, Iterator
from dataclasses import astuple
from functools import cache
from operator import attrgetter
from typing import Any

from segstore_ds.errors import InternalError
from segstore_ds.format.inline import SHARE_HARD_BYTES
from segstore_ds.format.operation import OPERATIONS, RELISTING, Operation
from segstore_ds.format.root import LastUpkeep, Root

# Every commit checks hundreds of rows: `map` with these loops over them in C.
_rows_of, _id_of = attrgetter("rows"), attrgetter("segment_id")
_version_of, _time_of = attrgetter("version"), attrgetter("time_us")


def check_transition(old: Root, new: Root) -> None:
    """Raise InternalError with every broken rule if `new` may not follow `old`."""
    broken = [*broken_rules(old, new), *broken_invariants(new), *broken_by_operation(old, new)]
    if new.inline_bytes > SHARE_HARD_BYTES:
        broken.append("inline segments stay within their share")
    if broken:
        raise _invalid(new, broken)


def check_first(root: Root) -> None:
    """Raise InternalError with every broken rule if a stream may not begin with `root`."""
    if broken := [*broken_invariants(root)]:
        raise _invalid(root, broken)


def _invalid(root: Root, broken: list[str]) -> InternalError:
    fact = "commit would make an invalid root"
    return InternalError(fact, rules=broken, version=root.version, stream=root.stream_id)


def broken_rules(old: Root, new: Root) -> Iterator[str]:
    """Yield the rules between two successive roots that are broken."""
    rules = {
        "the stream id stays": new.stream_id == old.stream_id,
        "the generation never goes back": new.generation >= old.generation,
        "versions are dense": new.version == old.version + 1,
        "a root names its parent": new.parent == old.transaction,
        "a transaction is committed once": new.transaction != old.transaction,
        "commit time never goes back": new.time_us >= old.time_us,
        "the head only grows": new.head >= old.head,
        "the tail only grows": new.tail >= old.tail,
        "the records of copies stay": new.copies == old.copies,
        "a sealed stream keeps its tail": not old.sealed or (new.sealed and new.tail == old.tail),
        "a dropped stream stays dropped": new.dropped >= old.dropped,
        "segment numbers only grow": new.next_segment >= old.next_segment,
        "log_start only grows": new.log_start >= old.log_start,
        "log_start leaves the base": new.log_start <= old.version,
        "the history begins where it began": first_recorded(new) == first_recorded(old),
        "the staging floor only grows": new.staging_floor >= old.staging_floor,
        "the staging floor is a past version": new.staging_floor <= new.version,
        "upkeep only goes on": old.upkeep is None
        or (new.upkeep is not None and _upkeep_grows(old.upkeep, new.upkeep)),
        "orphans are swept below the staging floor": new.upkeep is None
        or new.upkeep.swept <= new.staging_floor,
        "a commit that lists again what was retired says so": new.restored
        == (
            new.version if new.operation in RELISTING and old.restored is not None else old.restored
        ),
        "epochs only grow": new.epochs is old.epochs or _epochs_grow(old, new),
        "writers never shrink": _writers_grow(old, new),
        "reader features never vanish": set(new.reader_features) >= set(old.reader_features),
        "writer features never vanish": set(new.writer_features) >= set(old.writer_features),
        "unknown fields are carried through": dict(new.extra) == dict(old.extra),
        "retired objects are kept": new.operation in (Operation.UPKEEP, Operation.REPAIR)
        or new.retired is old.retired
        or new.retired_count >= old.retired_count,
    }
    return (rule for rule, kept in rules.items() if not kept)


def broken_invariants(root: Root) -> Iterator[str]:
    """Yield the rules within one root that are broken."""
    start = cursor = root.listed_start
    for ref in (*root.lists, *root.parts):
        if ref.start != cursor or ref.end <= ref.start:
            yield "parts tile the range"
        cursor = ref.end
    cursor += sum(map(_rows_of, root.entries))
    ids = [*map(_id_of, root.entries)]
    numbers = [segment_id & 0xFFFFFFFF for segment_id in ids]
    rules = {
        "parts and entries end at the tail": cursor == root.tail,
        "the head lies within what is listed": start <= root.head <= root.tail,
        "segment numbers are unique": len(set(numbers)) == len(numbers),
        "segment numbers lie below the next": max(numbers, default=-1) < root.next_segment,
        "epochs of segments exist": max(ids, default=-1) >> 32 < len(root.epochs),
        "log_start lies below the version": root.log_start < root.version or not root.parent,
        "a first root begins the log": bool(root.parent) or root.log_start == root.version,
        "writers' batches lie before the tail": all(
            writer.end <= root.tail and writer.rows <= writer.end and writer.version <= root.version
            for writer in root.writers.values()
        ),
    }
    yield from (rule for rule, kept in rules.items() if not kept)
    yield from broken_history(root)


def _epochs_grow(old: Root, new: Root) -> bool:
    kept = new.epochs[: len(old.epochs)]
    return kept == old.epochs or [(e.number, e.since) for e in kept] == [
        (e.number, e.since) for e in old.epochs
    ]


def _writers_grow(old: Root, new: Root) -> bool:
    moved = set(old.writers) - set(new.writers)
    before = {*old.writers_lists, *old.writers_parts}
    after = {*new.writers_lists, *new.writers_parts}
    if before == after:
        return not moved
    # Parts are not read here. Joined parts may have fewer rows: the newest of each name.
    gained = sum(part.count for part in after - before)
    return gained >= max([len(moved), *(part.count for part in before - after)])


def _upkeep_grows(old: LastUpkeep, new: LastUpkeep) -> bool:
    return all(after >= before for before, after in zip(astuple(old), astuple(new), strict=True))


def first_recorded(root: Root) -> int:
    """Return the first version in the history: that of the stream's first commit. Pure."""
    refs = root.history_lists or root.history_parts
    return refs[0].start if refs else root.history[0].version if root.history else 0


def broken_history(root: Root) -> Iterator[str]:
    """Yield the rules about the history within one root that are broken. Pure."""
    rows, refs = root.history, (*root.history_lists, *root.history_parts)
    cursor = min(first_recorded(root), root.log_start) if root.parent else root.version
    for ref in refs:
        if ref.start != cursor:
            yield "the history has a row for every version"
        cursor = ref.end
    if [*map(_version_of, rows)] != [*range(cursor, cursor + len(rows))]:
        yield "the history has a row for every version"
    if not rows or rows[-1].version != root.version:
        yield "the history ends with this version"
    times = [time for ref in refs for time in (ref.time_us, ref.last_us)]
    times += map(_time_of, rows)
    if times != sorted(times):
        yield "the history's times never go back"


# Every commit may change the fields that no operation owns.
_OWNED = tuple(dict.fromkeys(field for rule in OPERATIONS.values() for field in rule.owns.split()))


def broken_by_operation(old: Root, new: Root) -> Iterator[str]:
    """Yield fields that an operation may not change, and objects that are dropped unretired."""
    if rule := OPERATIONS.get(new.operation):
        fields, values_of = _left_alone(new.operation)
        before, after = values_of(old), values_of(new)
        if before != after:
            for field, was, now in zip(fields, before, after, strict=True):
                if was != now and not (field == "properties" and _follow_columns(old, new)):
                    yield f"{new.operation} leaves {field} alone"
        if rule.rewrites and new.listed_start != old.listed_start:
            yield f"{new.operation} leaves every offset alone"
        yield from _lost(old, new)


def _follow_columns(old: Root, new: Root) -> bool:
    """Tell whether properties may change because a new epoch renames columns."""
    return old.epochs != new.epochs and old.properties.keys() == new.properties.keys()


@cache
def _left_alone(operation: str) -> tuple[list[str], Callable[[Root], tuple[Any, ...]]]:
    """Return the fields that an operation may not change, and a getter of their values."""
    own = OPERATIONS[operation].owns.split()
    fields = [field for field in _OWNED if field not in own]
    return fields, attrgetter(*fields)


def _lost(old: Root, new: Root) -> Iterator[str]:
    if new.retired_parts != old.retired_parts:
        return  # this commit's retired objects may have moved to the new part
    if new.lists != old.lists:
        return  # parts may have moved to a list of parts
    kept = {*map(id, new.entries)}
    dropped = [item for item in old.entries if id(item) not in kept and item.frame is None]
    if not dropped and new.parts is old.parts:
        return
    retired = {item.path for item in new.retired}
    if new.parts is not old.parts:
        listed = {part.path for part in new.parts}
        for part in old.parts:
            if part.path not in listed and part.path not in retired:
                yield f"a part that is dropped is retired: {part.path}"
        if listed - {part.path for part in old.parts}:
            return  # entries may have moved to a new part
    listed_now = {entry.path for entry in new.entries}
    for entry in dropped:
        if entry.path not in listed_now | retired:
            yield f"a segment that is dropped is retired: {entry.path}"
