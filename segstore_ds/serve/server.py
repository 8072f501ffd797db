"""A server of streams over Arrow Flight: list, schema, scan, follow and append.

A stream has a name. A descriptor is the name as its path, or a JSON object as its command
(`requests`). The endpoints of a scan are parts of one version, so clients may read them in any
order and in parallel. Tickets are JSON as well: a client may write its own, as it must to follow.

The server keeps no state between calls. A client that follows keeps the offset it has reached.
"""

import json
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from time import monotonic
from typing import Any

import pyarrow as pa
from pyarrow import flight

from segstore_ds.errors import InvalidInputError, NotFoundError, SchemaMismatchError, SegstoreError
from segstore_ds.format.arrow.offsets import check_offsets
from segstore_ds.format.schema.unpacking import unpacked_sizes
from segstore_ds.options.arguments import check_timeout
from segstore_ds.serve.requests import (
    APPEND_FIELDS,
    FOLLOW_FIELDS,
    MIDDLEWARE,
    SCAN_FIELDS,
    Caller,
    Tokens,
    is_follow,
    parse_request,
)
from segstore_ds.stream.scan import Scan
from segstore_ds.stream.stream import Stream

_LOG = logging.getLogger(__name__)

POLL_S = 0.05
EVENT_BYTES = 8  # added for each event to the size of an append
TEXT_BYTES = 1500  # of an error; gRPC sends it twice, once in up to three times as many bytes
# The part of a URL or path before its last name.
_FOLDERS = re.compile(r"""(?<![\w/])(?:[a-z][a-z0-9+.-]*://|/)(?:[^\s'"/]*/)*""")


@contextmanager
def _as_flight() -> Iterator[None]:
    """Raise errors as Flight's own, which it sends with a status and without a Python traceback.

    Clients must not learn where streams are, and gRPC drops texts of more than a few KiB.
    """
    try:
        yield
    except SegstoreError as error:
        _LOG.info("a call was refused", exc_info=error)
        kind = flight.FlightUnavailableError if error.retryable else flight.FlightServerError
        text = _FOLDERS.sub("", str(error)).encode()
        if len(text) > TEXT_BYTES:
            text = text[: 2 * TEXT_BYTES // 3] + b" ... " + text[-TEXT_BYTES // 3 :]
        more = json.dumps({"code": error.code, "retryable": error.retryable})
        raise kind(text.decode(errors="ignore"), more) from None
    except flight.FlightError:
        raise
    except Exception as error:
        _LOG.exception("a call failed")
        raise flight.FlightInternalError(
            f"SEG_INTERNAL: a call failed, see the log of the server: {type(error).__name__}"
        ) from error


class StreamServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves streams by name until `shutdown`; each call runs in a thread of its own."""

    def __init__(
        self,
        streams: Mapping[str, Stream],
        location: str,  # such as `grpc://127.0.0.1:8815`; port 0 takes a free one
        *,
        tokens: Tokens,
        writable: bool,  # whether appends are accepted
        most_calls: int,  # scans, follows and appends at a time; one more is to be tried again
        append_bytes: int,  # of one append, before compression, with `EVENT_BYTES` for each event
        certificate: tuple[bytes, bytes] | None = None,  # its PEM and that of its key, for grpc+tls
    ) -> None:
        super().__init__(
            location,
            middleware={MIDDLEWARE: tokens},
            tls_certificates=[certificate] if certificate else None,
        )
        self._streams, self._writable, self._append_bytes = streams, writable, append_bytes
        self._calls, self._most_calls = threading.Semaphore(most_calls), most_calls
        self._ending = threading.Event()

    def shutdown(self) -> None:
        """End the server: follows end at once, scans and appends are completed."""
        self._ending.set()
        super().shutdown()

    @_as_flight()
    def list_flights(
        self, _context: flight.ServerCallContext, _criteria: bytes
    ) -> list[flight.FlightInfo]:
        """List the streams."""
        return [
            self._info(flight.FlightDescriptor.for_path(name), name, stream.refresh().scan())
            for name, stream in self._streams.items()
        ]

    def get_schema(
        self, _context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.SchemaResult:
        """Return the columns of a scan."""
        try:
            with _as_flight():
                return flight.SchemaResult(self._scan(_request(descriptor))[1].schema)
        except flight.FlightError as error:
            failure = error.with_traceback(None)
        raise failure from None

    # pyarrow sends the traceback of this one call: it must not say where the server's files are.
    get_schema.__code__ = get_schema.__code__.replace(co_filename="segstore")

    @_as_flight()
    def get_flight_info(
        self, _context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Plan a scan: its endpoints are parts of the newest version, or of that asked for."""
        request = _request(descriptor)
        name, scan = self._scan(request)
        return self._info(descriptor, name, scan, request)

    @_as_flight()
    def list_actions(self, _context: flight.ServerCallContext) -> list[flight.ActionType]:
        """List the actions."""
        return [flight.ActionType("info", "The range and sizes of the stream whose name is given.")]

    @_as_flight()
    def do_action(
        self, _context: flight.ServerCallContext, action: flight.Action
    ) -> list[flight.Result]:
        """Run the action `info`."""
        if action.type != "info":
            raise NotFoundError("no such action", remedy="use 'info'", action=action.type)
        found = self._find(action.body.to_pybytes().decode(errors="replace")).refresh().info()
        return [flight.Result(json.dumps(found, default=str).encode())]

    @_as_flight()
    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.GeneratorStream:
        """Send the events of a scan, or follow a stream."""
        if is_follow(ticket.ticket):
            request = parse_request(ticket.ticket, FOLLOW_FIELDS, "stream")
            schema, batches = self._follow(context, request)
        else:
            _, scan = self._scan(parse_request(ticket.ticket, SCAN_FIELDS, "stream"))
            schema, batches = scan.schema, iter(scan)
        return flight.GeneratorStream(schema, self._counted(batches))

    @_as_flight()
    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Append the events that are sent, in one commit, and answer with the commit as JSON.

        `rows` is their number: a client that is cut off commits nothing.
        """
        caller: Caller = context.get_middleware(MIDDLEWARE)
        if not self._writable or caller.right != "write":
            raise flight.FlightUnauthorizedError(
                "this server, or this token, allows no appends: see 'segstore serve --help'"
            )
        request = parse_request(descriptor.command or b"", APPEND_FIELDS, "stream", "rows")
        stream, rows = self._find(request.pop("stream")), request.pop("rows")
        sent = self._counted(self._sent(reader, rows))
        given = pa.RecordBatchReader.from_batches(reader.schema, sent)
        commit = stream.append(given, **request)
        writer.write(json.dumps(asdict(commit), default=str).encode())

    @_as_flight()
    def do_exchange(self, *_: object) -> None:
        """Refuse an exchange; pyarrow would answer with a traceback."""
        raise InvalidInputError("no events are exchanged", remedy="read by DoGet, append by DoPut")

    def _sent(
        self, reader: flight.MetadataRecordBatchReader, rows: int
    ) -> Iterator[pa.RecordBatch]:
        received = size = 0
        for chunk in reader:
            if chunk.data is None:
                continue  # only metadata, which clients may send at any time
            received += chunk.data.num_rows
            size += EVENT_BYTES * chunk.data.num_rows
            if size <= self._append_bytes:
                size += _unpacked_bytes(chunk.data)
            if size > self._append_bytes:
                raise InvalidInputError(
                    "an append is too large",
                    remedy="send fewer events at a time",
                    most_bytes=self._append_bytes,
                )
            yield chunk.data
        # The end of a call that was cut off looks like the end of the events.
        if received != rows:
            raise InvalidInputError(
                "not the promised number of events was sent; nothing was appended",
                promised=rows,
                received=received,
            )

    def _counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Count a call as long as its batches are read; refuse it if there are too many."""
        if not self._calls.acquire(blocking=False):
            raise flight.FlightUnavailableError(
                f"the server already runs {self._most_calls} calls: try again later"
            )
        try:
            with _as_flight():
                yield from batches
        finally:
            self._calls.release()

    def _follow(
        self, context: flight.ServerCallContext, request: dict[str, Any]
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        stream = self._find(request.pop("stream"))
        timeout_s = check_timeout("timeout", request.pop("timeout", None))
        del request["follow"]
        how = {name: value for name, value in request.items() if name != "start"}
        stream.refresh()
        events = stream.follow(start=request.get("start"), timeout=0, **how)
        schema = stream.scan(**{**how, "start": "tail"}).schema

        def batches() -> Iterator[pa.RecordBatch]:
            heard_s = monotonic()
            while not (context.is_cancelled() or self._ending.is_set()):
                if (batch := next(events, None)) is not None:
                    if not batch.schema.equals(schema):
                        raise SchemaMismatchError(
                            "the stream's columns changed while it was followed",
                            remedy="start again at the offset after the last event; a request that "
                            "names its columns does not end when others are added",
                        )
                    yield batch
                    heard_s = monotonic()
                elif events.ended or (timeout_s is not None and monotonic() - heard_s >= timeout_s):
                    return
                else:
                    self._ending.wait(POLL_S)

        return schema, batches()

    def _find(self, name: str) -> Stream:
        try:
            return self._streams[name]
        except KeyError:
            raise NotFoundError(
                "no such stream", remedy="list the flights of the server", name=name
            ) from None

    def _scan(self, request: dict[str, Any]) -> tuple[str, Scan]:
        how = dict(request)
        name = how.pop("stream")
        return name, self._find(name).scan(**how)

    def _info(
        self,
        descriptor: flight.FlightDescriptor,
        name: str,
        scan: Scan,
        request: Mapping[str, Any] | None = None,
    ) -> flight.FlightInfo:
        how = {**(request or {}), "stream": name, "as_of": scan.version}
        tickets = [{**how, "start": scan.start, "end": scan.end}]
        if scan.limit is None:
            tickets = [{**how, "start": task.start, "end": task.end} for task in scan.tasks()]
            for ticket in tickets:
                ticket.pop("limit", None)  # the range applies it
        endpoints = [flight.FlightEndpoint(json.dumps(each).encode(), []) for each in tickets]
        exact = not (how.get("filters") or how.get("event_time"))
        rows = scan.end - scan.start if exact else -1
        return flight.FlightInfo(scan.schema, descriptor, endpoints, rows, -1)


def _unpacked_bytes(batch: pa.RecordBatch) -> float:
    """Return the bytes of a batch once dictionaries and views are unpacked."""
    try:
        for column in batch.columns:
            column.validate()
            check_offsets(column)
        return float(sum([unpacked_sizes(column).sum() for column in batch.columns]))
    except (pa.ArrowException, ValueError):
        return 0.0  # the append refuses it, and says why


def _request(descriptor: flight.FlightDescriptor) -> dict[str, Any]:
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        return {"stream": b"/".join(descriptor.path).decode(errors="replace")}
    return parse_request(descriptor.command or b"", SCAN_FIELDS, "stream")
