"""Single flight: concurrent requests for one value share one load."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Loads values; `load` runs in a requesting thread, without a lock, and nothing is cached."""

    def __init__(self, load: Callable[[K], V]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._flights: dict[K, Future[V]] = {}

    def get(self, key: K) -> V:
        """Load a value, or wait for the thread that loads it; all get its value or error."""
        with self._lock:
            flight = self._flights.get(key)
            mine = flight is None
            if flight is None:
                flight = self._flights[key] = Future()
        if not mine:
            return flight.result()
        try:
            value = self._load(key)
        except BaseException as error:
            flight.set_exception(error)
            raise
        else:
            flight.set_result(value)
            return value
        finally:
            with self._lock:
                del self._flights[key]
