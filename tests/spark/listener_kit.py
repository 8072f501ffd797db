"""A query's events as its listener gets them, which Spark hands on in another thread."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener


class Heard:
    """Waits for an event of a listener."""

    def __init__(self, listener: object) -> None:
        names = ("onQueryStarted", "onQueryProgress", "onQueryTerminated")
        self.events = {name: threading.Event() for name in names}
        for name, event in self.events.items():
            setattr(listener, name, self._noting(getattr(listener, name), event))

    def _noting(self, method: Callable, event: threading.Event) -> Callable:
        def call(heard: object) -> None:
            method(heard)
            event.set()

        return call

    def wait(self, name: str) -> None:
        assert self.events[name].wait(180), name


@contextmanager
def listening(spark: SparkSession, listener: StreamingQueryListener) -> Iterator[Heard]:
    """Add a listener, and remove it when the query that it heard of has ended.

    While Connect's client removes the last listener, it holds the lock that the next event needs,
    and waits for that event for ever (SPARK-59623).
    """
    heard = Heard(listener)
    spark.streams.addListener(listener)
    try:
        yield heard
    finally:
        for query in spark.streams.active:
            query.stop()
        if heard.events["onQueryStarted"].is_set():
            heard.wait("onQueryTerminated")
        spark.streams.removeListener(listener)
