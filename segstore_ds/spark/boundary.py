"""The boundary where errors reach Spark: what Spark shows of them, and how they name options.

Spark shows an error as the text of its traceback, in a message of its own, so the traceback comes
before our text. At the format's entry points an error therefore loses its causes and its frames
inside segstore; the log has them at INFO. Options are named as Spark's users write them
(``mergeSchema=true``), where the engine names Python's arguments. This applies only to errors that
segstore raises on purpose: a bug keeps its traceback.

A worker that unpickles one of these objects has read its command, and acknowledges it. It rarely
collects garbage until its first entry point is done; then it freezes what was loaded (`workers`).
"""

import functools
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from segstore_ds.errors import SegstoreError
from segstore_ds.spark.workers import acknowledge, collect_seldom, freeze_worker

_LOG = logging.getLogger(__name__)
collect_seldom()  # Spark's processes import this module before the rest of the package
T = TypeVar("T")

# What Spark calls.
ENTRY_POINTS = frozenset(
    {"schema", "reader", "writer", "streamReader", "streamWriter", "partitions", "read", "write"}
    | {"commit", "initialOffset", "latestOffset", "reportLatestOffset"}
    | {"prepareForTriggerAvailableNow", "getDefaultReadLimit", "stop"}
)
# These return before anything is loaded.
_NO_WORK = frozenset({"streamReader", "streamWriter", "initialOffset", "stop"})


@functools.cache
def _options() -> tuple[Mapping[str, str], re.Pattern[str]]:
    """Return the options' names by those of Python arguments, and a pattern of calls or those."""
    from segstore_ds.options.arguments import snake
    from segstore_ds.options.table import PYTHON, TABLE

    found = {snake(option.name): option.name for option in TABLE if option.scopes != (PYTHON,)}
    calls = r"[\w.]+\([^()]*\)"
    return found, re.compile(rf"{calls}|\b({'|'.join(found)})\b(=True\b|=False\b)?")


def spell_for_spark(text: str) -> str:
    """Return a text with Python arguments spelled as options, but not in a call of Python.

    >>> spell_for_spark("set merge_schema=True, or give another writer_id")
    'set mergeSchema=true, or give another writerId'
    >>> spell_for_spark("choose one with settings.update(time_column='ts')")
    "choose one with settings.update(time_column='ts')"
    """
    names, pattern = _options()

    def spell(found: re.Match[str]) -> str:
        return names[found[1]] + (found[2] or "").lower() if found[1] else found[0]

    return pattern.sub(spell, text)


def at_boundary(cls: type[T]) -> type[T]:
    """Make entry points raise errors as Spark should show them, and unpickling acknowledge."""
    for name in ENTRY_POINTS & vars(cls).keys():
        setattr(cls, name, _guarded(vars(cls)[name]))
    cls.__setstate__ = _acknowledging(getattr(cls, "__setstate__", _restore))  # type: ignore[attr-defined]
    return cls


def translate_errors(function: Callable[..., T]) -> Callable[..., T]:
    """Make a Spark helper raise errors that name options as its caller gave them."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> T:
        try:
            return function(*args, **options)
        except SegstoreError as error:
            error.respell(spell_for_spark)
            raise

    return call


def _restore(made: Any, state: dict[str, Any]) -> None:
    vars(made).update(state)


def _acknowledging(restore: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    @functools.wraps(restore)
    def call(made: Any, state: Any) -> None:
        acknowledge()
        restore(made, state)

    return call


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    works = method.__name__ not in _NO_WORK

    # The error is popped from a list when raised: a local name would make a reference cycle.
    @functools.wraps(method)
    def call(*args: Any, **given: Any) -> Any:
        try:
            result = method(*args, **given)
        except SegstoreError as error:
            failure = [_stripped(error)]
        else:
            if works:
                freeze_worker(method.__name__)
            return result
        raise failure.pop() from None

    @functools.wraps(method)
    def iterate(*args: Any, **given: Any) -> Iterator[Any]:
        try:
            yield from method(*args, **given)
        except SegstoreError as error:
            failure = [_stripped(error)]
        else:
            freeze_worker(method.__name__)
            return
        raise failure.pop() from None

    return iterate if inspect.isgeneratorfunction(method) else call


def _stripped(error: SegstoreError) -> SegstoreError:
    _LOG.info("raised to Spark: %s", error.code, exc_info=error)
    error.respell(spell_for_spark)
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
