"""Pins: commits in an origin that keep a version for a clone, and release it."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from segstore_ds.errors import (
    FencedError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    SegstoreError,
    SnapshotExpiredError,
    StorageError,
)
from segstore_ds.format.copies import (
    CLONE,
    Origin,
    Pin,
    all_pins,
    mode_of,
    origins_of,
    parse_copy,
    pin_of,
    pins_of,
)
from segstore_ds.format.operation import Operation
from segstore_ds.format.policies import GRACE_S
from segstore_ds.format.record import to_json
from segstore_ds.format.redactions import refuse_unclean
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.log.seen import forgotten_version
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.status.table import Slot

_LOG = logging.getLogger(__name__)
MOST_PINS = 64
MOST_MOVES = 4  # how often a moved origin is followed to its next folder


def run_pin(
    context: StreamContext,
    name: str,
    url: str,
    version: int | None = None,
    *,
    allow_redacted: bool = False,
) -> Pin:
    """Pin a version for a clone, the newest by default; safe to repeat: a pin never moves.

    An object that a version lists and the newest one does not was retired after it. So all objects
    of a version at or above `log_start`, or that a tag keeps, exist, and the pin keeps them.
    """

    def next_root(root: Root, slot: Slot) -> Root | None:
        if root.origins:
            raise InvalidInputError(
                "a clone can't be cloned",
                remedy="call materialize() on it first",
                url=context.storage.url,
            )
        pins = _current(root, slot)
        if name in pins:
            known = pins[name]
            moved = known.url != url or version not in (None, known.version)
            if moved or known.released_us is not None:
                raise InvalidInputError(
                    "the copy id was used for another clone",
                    remedy="use another id",
                    copy_id=name,
                    clone=known.url,
                    version=known.version,
                )
            if not known.made and not allow_redacted:
                refuse_unclean(root, known.version)
            return None
        if version is not None and not allow_redacted:
            refuse_unclean(root, version)
        if version is not None and version < root.log_start and not root.kept_version(version):
            raise forgotten_version(version, root.log_start, url=context.storage.url)
        if len(pins) >= MOST_PINS:
            raise InvalidInputError(
                "stream has too many clones",
                remedy="drop or materialize some of them",
                most=MOST_PINS,
            )
        listed = slot.version if version is None else version
        pins[name] = Pin(listed, url, clone_id=context.clock.new_id())
        return replace(root, pins=_values(pins), operation=Operation.PIN)

    return pin_of(context.commit(next_root).root, name)


def read_pinned(context: StreamContext, name: str, pin: Pin) -> Root:
    """Return the version that a pin keeps for a clone that is not made yet."""
    if context.log.root.version == pin.version:
        return context.log.root
    try:
        return context.log.read_version(pin.version)
    except SnapshotExpiredError as error:
        raise SnapshotExpiredError(
            "the version that an earlier attempt pinned was forgotten",
            remedy="call pins.release(copy_id) on the origin, then clone again",
            copy_id=name,
            version=pin.version,
        ) from error


def mark_made(context: StreamContext, name: str, url: str, clone: Root) -> bool:
    """Note in a pin that its clone exists, so that no second clone is made of it.

    `context` is the origin's; `url` is where the clone with the newest root `clone` was found.
    Returns False if the pin was removed or belongs to another clone. Safe to repeat.
    """

    def made(pin: Pin, _slot: Slot) -> Pin:
        return replace(pin, made=pin.made or pin.url == url)

    root = _change(context, name, made, held_by=clone.stream_id, operation=Operation.PIN)
    pin = pins_of(root).get(name)
    return pin is not None and pin.url == url and pin.clone_id == clone.stream_id


def run_unpin(context: StreamContext, name: str) -> None:
    """Remove a pin: from now on upkeep may delete what the clone reads."""
    if name not in pins_of(context.log.refresh()):
        raise NotFoundError("no such pin", name=name, pins=sorted(pins_of(context.log.root)))
    _change(context, name, lambda _pin, _slot: None)


def unpin_origins(context: StreamContext, root: Root) -> None:
    """Remove the pins of a dropped clone; skip origins that are gone. Safe to repeat."""
    for origin, there in _origins(context, root):
        _change_at(context, there, origin, lambda _pin, _slot: None)


def release_origins(context: StreamContext, root: Root) -> None:
    """Note in the pins that a clone no longer needs its origins; skip origins that are gone.

    Readers of the clone's older versions may still need them during the grace.
    """
    for origin, there in _origins(context, root):
        _change_at(
            context,
            there,
            origin,
            lambda pin, slot: replace(pin, released_us=pin.released_us or slot.time_us),
        )


def last_sharing(newest: Root) -> Root:
    """Return a root that names a clone's origins, even after `materialize` removed them. Pure.

    That call may have stopped between its commit and the release.
    """
    if newest.origins:
        return newest
    origins: dict[str, Any] = {}
    for name, record in newest.copies.items():
        if mode_of(record) == CLONE:
            made = parse_copy(name, record)
            origin = Origin(made.source, made.origin or "", name, made.version)
            origins[made.source] = to_json(origin)
    return replace(newest, origins=origins)


def _change_at(
    context: StreamContext,
    there: StreamContext,
    origin: Origin,
    change: Callable[[Pin, Slot], Pin | None],
) -> None:
    """Change the pin of a clone in its origin, or in the folder that was promoted in its place.

    The clone doesn't depend on the change, so after a failure the pin is left with a warning.
    """
    for _ in range(MOST_MOVES):
        try:
            _change(there, origin.pin, change, held_by=context.log.root.stream_id)
        except FencedError as error:
            failure: SegstoreError = error
            url = str(error.fields["primary"])
        else:
            return
        try:
            log = StreamLog(context.storage.sibling(url), clock=context.clock)
            if log.open().stream_id != origin.stream_id:
                break
        except (FormatError, NotFoundError, StorageError) as error:
            failure = error
            break
        there = StreamContext.of(log, client=context.client)
    _LOG.warning("pin %r of %s could not be changed: %s", origin.pin, origin.url, failure)


def _origins(context: StreamContext, root: Root) -> list[tuple[Origin, StreamContext]]:
    found = []
    for origin in origins_of(root):
        log = StreamLog(context.storage.sibling(origin.url), clock=context.clock)
        try:
            there = log.open()
        except NotFoundError:
            there = None
        if there is None or there.stream_id != origin.stream_id:
            _LOG.warning(
                "the origin %s of clone %s is gone, so its pin can't be released",
                origin.url,
                context.storage.url,
            )
            continue
        found.append((origin, StreamContext.of(log, client=context.client)))
    return found


def _change(
    context: StreamContext,
    name: str,
    change: Callable[[Pin, Slot], Pin | None],
    *,
    held_by: str | None = None,
    operation: Operation = Operation.UNPIN,
) -> Root:
    """Change a pin, or remove it if `change` returns None; only `held_by`'s if that is given."""

    def next_root(root: Root, slot: Slot) -> Root | None:
        pins = _current(root, slot)
        pin = pins.get(name)
        if pin is not None and held_by in (None, pin.clone_id):
            changed = change(pin, slot)
            pins.pop(name)
            if changed is not None:
                pins[name] = changed
        values = _values(pins)
        return None if values == root.pins else replace(root, pins=values, operation=operation)

    return context.commit(next_root).root


def _values(pins: dict[str, Pin]) -> dict[str, Any]:
    return {name: to_json(pin) for name, pin in pins.items()}


def _current(root: Root, slot: Slot) -> dict[str, Pin]:
    """Return the pins without those that were released more than two graces ago."""
    until_us = slot.time_us - int(2 * GRACE_S * 1e6)
    return {
        name: pin
        for name, pin in all_pins(root).items()
        if pin.released_us is None or pin.released_us > until_us
    }
