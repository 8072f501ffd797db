"""`segstore serve`: real clients of Arrow Flight, in this process and in others."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import segstore_ds as segstore
from segstore_ds.cli.main import main
from segstore_ds.serve.requests import Tokens, read_tokens
from segstore_ds.serve.server import StreamServer

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])
USERS = ["ada", "bob", "cyd", "dan", "eve", "fay"]


@pytest.fixture
def stream(tmp_path: Path) -> segstore.Stream:
    """A stream of six events in three commits."""
    made = segstore.create(tmp_path / "clicks", SCHEMA)
    for n in range(0, 6, 2):
        made.append(_rows(n, n + 2))
    return made


def _rows(start: int, end: int) -> pa.Table:
    return pa.table({"user": USERS[start:end], "n": [*range(start, end)]}, SCHEMA)


@pytest.fixture
def connect(stream: segstore.Stream) -> Iterator[Callable[..., flight.FlightClient]]:
    """Return a function that starts a server with the given settings and a client of it."""
    opened: list[Any] = []

    def start(tokens: Any = (), **settings: Any) -> flight.FlightClient:
        how = {"writable": True, "most_calls": 4, "append_bytes": 1 << 20} | settings
        served = {"clicks": segstore.open(stream.url)}
        place = "grpc://127.0.0.1:0"
        server = StreamServer(served, place, tokens=Tokens(tokens), **how)
        client = flight.connect(f"grpc://127.0.0.1:{server.port}")
        opened.extend((client, server))
        return client

    yield start
    for each in opened:
        each.close() if isinstance(each, flight.FlightClient) else each.shutdown()


def _command(**fields: Any) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(json.dumps({"stream": "clicks", **fields}))


def _ticket(**fields: Any) -> flight.Ticket:
    return flight.Ticket(json.dumps({"stream": "clicks", **fields}).encode())


def _get(client: flight.FlightClient, **fields: Any) -> pa.Table:
    return client.do_get(_ticket(**fields)).read_all()


def _put(client: flight.FlightClient, events: pa.Table, *options: Any, **fields: Any) -> Any:
    command = _command(**{"rows": events.num_rows, **fields})
    writer, answer = client.do_put(command, events.schema, *options)
    with writer:
        writer.write_table(events)
        writer.done_writing()
        return json.loads(answer.read().to_pybytes())


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[Any, str]]]:
    """Run `segstore serve` in a process of its own; returns that, and the server's place."""
    command = [sys.executable, "-m", "segstore_ds.cli.main", "--json", "serve", "--port", "0"]
    with ExitStack() as running:

        def start(*arguments: str) -> tuple[Any, str]:
            process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
            running.enter_context(process)
            running.callback(process.kill)
            return process, json.loads(process.stdout.readline())["location"]

        yield start


def _end(server: Any, number: int = signal.SIGTERM, *, code: int = 0) -> None:
    server.send_signal(number)
    assert server.wait(30) == code


def _when_free(ask: Callable[[], Any]) -> Any:
    end = time.monotonic() + 30
    while True:
        try:
            return ask()
        except flight.FlightUnavailableError:
            assert time.monotonic() < end, "it never became free"
            time.sleep(0.01)


def test_the_streams_are_listed_with_schema_and_range(connect):
    client = connect()
    (info,) = client.list_flights()
    assert info.descriptor.path == [b"clicks"]
    assert (info.total_records, info.schema) == (6, SCHEMA)
    (result,) = client.do_action(flight.Action("info", b"clicks"))
    assert json.loads(result.body.to_pybytes())["tail"] == 6


def test_a_stream_that_is_gone_is_said_to_be_missing(connect, stream):
    client = connect()
    segstore.drop(stream.url, confirm=stream.url)
    for ask in (client.list_flights, lambda: [client.get_flight_info(_command())]):
        with pytest.raises(flight.FlightServerError, match="SEG_NOT_FOUND"):
            list(ask())


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"start": 1, "end": 5},
        {"columns": ["n"], "filters": "n > 2", "offset_column": "at"},
        {"filters": [["user", "==", "bob"]]},
        {"limit": 3},
        {"limit": 2, "filters": "n > 1"},
        {"as_of": 2},
        {"start": "version:1", "end": "tail"},
        {"start": "tail"},
    ],
    ids=str,
)
def test_a_scan_is_that_of_the_stream(connect, stream, how):
    client = connect()
    info = client.get_flight_info(_command(**how))
    parts = [client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]
    expected = stream.scan(**how).to_arrow()
    assert info.schema == expected.schema == client.get_schema(_command(**how)).schema
    assert pa.concat_tables([info.schema.empty_table(), *parts]).equals(expected)
    assert _get(client, **how).equals(expected)
    assert info.total_records in (expected.num_rows, -1)


def test_tickets_are_of_the_version_that_was_planned(connect, stream):
    client = connect()
    info = client.get_flight_info(flight.FlightDescriptor.for_path("clicks"))
    stream.overwrite(_rows(0, 1))
    got = [client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]
    assert pa.concat_tables(got)["n"].to_pylist() == [*range(6)]
    assert _get(client)["n"].to_pylist() == [0]


WRONG = {
    "SEG_INVALID_INPUT": [
        *(b"nonsense", b"[" * 100_000, b"[]", b"{}", b'{"stream": 7}'),
        *(
            b'{"stream": "clicks", %s}' % fields
            for fields in (
                *(b'"limit": true', b'"colums": ["n"]', b'"columns": ["m"]', b'"columns": [1]'),
                *(b'"columns": [[]]', b'"filters": [1]', b'"event_time": ["x"]'),
                *(b'"follow": true, "end": 7', b'"follow": true, "timeout": -1'),
            )
        ),
    ],
    "SEG_POSITION": [b'{"stream": "clicks", "start": 99}'],
    "SEG_NOT_FOUND": [
        b'{"stream": "other"}',
        b'{"stream": "clicks", "as_of": 99}',
        b'{"stream": "clicks", "end": "tag:none"}',
    ],
}


@pytest.mark.parametrize("code", WRONG)
def test_what_can_not_be_answered_is_an_error_that_says_so(connect, tmp_path, code):
    client = connect()
    for request in WRONG[code]:
        with pytest.raises(flight.FlightServerError, match=f"^{code}: ") as caught:
            client.do_get(flight.Ticket(request)).read_all()
        assert json.loads(caught.value.extra_info) == {"code": code, "retryable": False}
        assert "Traceback" not in str(caught.value)
        assert str(tmp_path) not in str(caught.value)
    assert _get(client).num_rows == 6  # the server goes on


def test_what_fails_unexpectedly_is_told_to_the_log_alone(connect, monkeypatch, caplog):
    client = connect()
    monkeypatch.setattr(segstore.Stream, "scan", lambda *_, **__: 1 / 0)
    with pytest.raises(flight.FlightInternalError, match=r"SEG_INTERNAL.*log") as caught:
        _get(client)
    assert "Traceback" not in str(caught.value)
    assert "ZeroDivisionError" in caplog.text


def test_an_error_of_get_schema_has_the_text_too(connect):
    """pyarrow adds a traceback to this one call, which names none of the server's files."""
    with pytest.raises(pa.ArrowException, match=r"SEG_INVALID_INPUT.*m") as caught:
        connect().get_schema(_command(columns=["m"]))
    assert str(caught.value).count("Traceback") <= 2  # pyarrow's client repeats the server's text
    assert {*re.findall(r'File "(.*?)"', str(caught.value))} == {"pyarrow/_flight.pyx", "segstore"}


def test_exchanges_are_refused_without_a_traceback(connect):
    with pytest.raises(flight.FlightServerError, match=r"SEG_INVALID_INPUT.*DoPut") as caught:
        connect().do_exchange(_command())[1].read_chunk()
    assert "Traceback" not in str(caught.value)


def test_damage_is_an_error_for_the_client(connect, stream, tmp_path):
    stream.append(_rows(0, 6), layout=segstore.Layout(inline_bytes=0))
    (segment,) = (tmp_path / "clicks" / "segments").rglob("*.*")
    data = bytearray(segment.read_bytes())
    data[len(data) // 3] ^= 1
    segment.write_bytes(data)
    with pytest.raises(pa.ArrowException, match="SEG_CORRUPT"):
        _get(connect())


def test_following_gets_what_is_appended_until_the_seal(connect, stream):
    reader = connect().do_get(_ticket(follow=True, start=4, filters="n != 5"))
    assert reader.read_chunk().data["n"].to_pylist() == [4]
    stream.append(_rows(0, 1))
    assert reader.read_chunk().data["n"].to_pylist() == [0]
    stream.seal()
    assert reader.read_all().num_rows == 0


def test_following_ends_when_nothing_came_for_the_timeout(connect):
    assert _get(connect(), follow=True, start="head", timeout=0)["n"].to_pylist() == [*range(6)]
    assert _get(connect(), follow=True, timeout=0.1).num_rows == 0


def test_a_client_that_leaves_makes_room_for_another(connect):
    client = connect(most_calls=1)
    reader = client.do_get(_ticket(follow=True, start=0))
    assert reader.read_chunk().data.num_rows
    with pytest.raises(flight.FlightUnavailableError, match="try again"):
        _get(client)
    reader.cancel()

    assert _when_free(lambda: _get(client)).num_rows == 6


def test_new_columns_end_a_follower_unless_it_names_its_columns(connect, stream):
    """They have no place in the schema that was sent first, and are not passed over in silence."""
    client = connect()
    reader = client.do_get(_ticket(follow=True, start=6))
    chosen = client.do_get(_ticket(follow=True, start=6, columns=["user", "n"]))
    more = _rows(0, 1).append_column("place", pa.array(["Rome"]))
    stream.append(more, merge_schema=True)
    assert chosen.read_chunk().data.to_pydict() == {"user": ["ada"], "n": [0]}
    with pytest.raises(flight.FlightServerError, match=r"SEG_SCHEMA.*start again"):
        reader.read_chunk()


@pytest.mark.parametrize("change", ["types", "names"])
def test_other_columns_end_a_follower(connect, stream, change):
    """Also where two columns of one type swapped their names."""
    event = {"user": "bob", "n": 1, "y": "Rome"}
    stream.append(event, merge_schema=True)
    reader = connect().do_get(_ticket(follow=True, start=7))
    if change == "types":
        stream.overwrite(pa.Table.from_pylist([{**event, "n": 1.5}]), overwrite_schema=True)
    else:
        stream.change_schema(rename={"user": "y", "y": "user"})
        stream.append({"user": "Rome", "n": 1, "y": "bob"})
    with pytest.raises(flight.FlightServerError, match=r"SEG_SCHEMA.*start again") as caught:
        reader.read_chunk()
    assert "Traceback" not in str(caught.value)


def test_an_append_is_one_commit_and_safe_to_repeat(connect, stream):
    client = connect()
    first = _put(client, _rows(0, 3), writer_id="go", batch_id=1)
    again = _put(client, _rows(0, 3), writer_id="go", batch_id=1)
    assert (first["start"], first["end"], first["repeated"]) == (6, 9, False)
    assert (again["start"], again["end"], again["repeated"]) == (6, 9, True)
    assert stream.refresh().tail == 9


def test_metadata_without_events_is_passed_over(connect):
    events = _rows(0, 2)
    writer, answer = connect().do_put(_command(rows=2), events.schema)
    with writer:
        writer.write_metadata(b"from here on")
        writer.write_table(events)
        writer.done_writing()
        assert json.loads(answer.read().to_pybytes())["end"] == 8


def _few_bytes() -> Iterator[pa.Array]:
    one = "x" * 10_000
    yield pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int8()), [one])
    view = len(one).to_bytes(4, "little") + b"xxxx" + bytes(8)
    buffers = [None, pa.py_buffer(view * 1000), pa.py_buffer(one.encode())]
    yield pa.Array.from_buffers(pa.string_view(), 1000, buffers)
    yield pa.nulls(1_000_000)
    yield pa.array([True] * 20_000)  # eight in a byte
    yield pa.FixedSizeListArray.from_arrays(pa.nulls(1 << 30), 1 << 30)


REFUSED = {
    "too few": (_rows(0, 3), {"rows": 4}, "promised"),
    "too many": (_rows(0, 3), {"rows": 2}, "promised"),
    "none promised": (_rows(0, 3), {"rows": 0}, "promised"),
    "too large": (pa.table({"user": ["x" * 99_999], "n": [1]}, SCHEMA), {}, "too large"),
    **{
        f"{column.type!s:.20} as it is stored": (
            pa.table({"more": column}),
            {"merge_schema": True},
            "too large",
        )
        for column in _few_bytes()
    },
    "other columns": (pa.table({"m": [1]}), {}, "merge_schema"),
    "a broken rule": (_rows(0, 5), {}, "row=3, column='n', rule='few: n < 3'"),
    "damaged": (
        pa.table(
            {"user": pa.DictionaryArray.from_arrays(pa.array([7]), ["x"], safe=False), "n": [1]}
        ),
        {},
        "memory does not match",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_append_that_is_refused_changes_nothing(connect, stream, name):
    stream.settings.update(rules={"checks": {"few": "n < 3"}})
    events, how, told = REFUSED[name]
    with pytest.raises(flight.FlightServerError, match=re.escape(told)):
        _put(connect(append_bytes=90_000), events, **how)
    assert stream.refresh().tail == 6


def test_long_errors_reach_the_client(connect, stream):
    wide = pa.record_batch({f"größe_{place:04}": [place] for place in range(500)})
    stream.overwrite(wide, overwrite_schema=True)
    client = connect()
    with pytest.raises(flight.FlightServerError, match=r"^SEG_INVALID_INPUT: .* \.\.\. "):
        _get(client, columns=["größe"])


_HALF = """
import json, sys, time
import pyarrow as pa
from pyarrow import flight
client = flight.connect(sys.argv[1])
rows = pa.table({"user": ["x"] * 10, "n": [*range(10)]})
command = json.dumps({"stream": "clicks", "rows": 20})
writer, _ = client.do_put(flight.FlightDescriptor.for_command(command), rows.schema)
writer.write_table(rows)
print("half", flush=True)
time.sleep(60)
"""


def test_a_client_that_is_killed_appends_nothing(serve, stream):
    server, place = serve(stream.url, "--writable", "--most-calls", "1")
    client = flight.connect(place)
    command = [sys.executable, "-c", _HALF, place]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "half\n"
        killed.kill()

    assert _when_free(lambda: _put(client, _rows(0, 1)))["start"] == 6
    assert stream.refresh().tail == 7
    _end(server)


def test_it_only_reads_unless_it_is_told(connect, stream):
    client = connect(writable=False)
    assert _get(client).num_rows == 6
    with pytest.raises(flight.FlightUnauthorizedError, match="no appends"):
        _put(client, _rows(0, 1))
    assert stream.refresh().tail == 6


def test_tokens_say_who_may_read_and_write(connect, tmp_path):
    path = tmp_path / "tokens"
    path.write_text("# ours\nread cat\n\nwrite dog\n")
    client = connect(read_tokens(path))

    def with_token(value: str) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(headers=[(b"authorization", value.encode())])

    for wrong in ("Bearer cow", "Bearer ", "cat", "Basic cat", "Bearer cat dog"):
        with pytest.raises(flight.FlightUnauthenticatedError):
            client.do_get(_ticket(), with_token(wrong)).read_all()
        with pytest.raises(flight.FlightUnauthenticatedError):
            [*client.list_flights(options=with_token(wrong))]
    with pytest.raises(flight.FlightUnauthenticatedError):
        _get(client)
    for right in ("Bearer cat", "bearer dog"):
        assert client.do_get(_ticket(), with_token(right)).read_all().num_rows == 6
    with pytest.raises(flight.FlightUnauthorizedError):
        _put(client, _rows(0, 1), with_token("Bearer cat"))
    assert _put(client, _rows(0, 1), with_token("Bearer dog"))["start"] == 6


@pytest.mark.parametrize("text", ["", "# none\n", "cat\n", "own cat\n", "read a b\n"])
def test_a_file_of_tokens_that_is_wrong_shows_none_of_them(tmp_path, text):
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(segstore.errors.InvalidInputError) as caught:
        read_tokens(path)
    assert "cat" not in str(caught.value)


def test_tls(serve, tmp_path, stream):
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    command += " -addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    certificate = tmp_path / "cert.pem"
    pair = ("--certificate", str(certificate), "--key", str(tmp_path / "key.pem"))
    server, place = serve(stream.url, "--host", "localhost", *pair)
    assert place.startswith("grpc+tls://localhost:")
    client = flight.connect(place, tls_root_certs=certificate.read_bytes())
    assert _get(client).num_rows == 6
    with pytest.raises(pa.ArrowException):
        [*flight.connect(place).list_flights()]
    _end(server)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_ends_it_while_somebody_follows(serve, stream, number):
    server, place = serve(f"hits={stream.url}")
    reader = flight.connect(place).do_get(_ticket(stream="hits", follow=True, start=0))
    assert reader.read_chunk().data.num_rows
    waiting = threading.Thread(target=reader.read_all)
    waiting.start()
    _end(server, number)
    waiting.join(30)
    assert not waiting.is_alive()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--host", "192.0.2.1"), "--tokens"),
        (("--key", "k.pem"), "--certificate"),
        (("elsewhere/clicks",), "NAME=URL"),
        (("--append-bytes", "many"), "--append-bytes"),
        (("--tokens", "/nowhere"), "nowhere"),
        (("none=/nowhere/none",), "SEG_NOT_FOUND"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(stream, capsys, arguments, said):
    assert main(["serve", stream.url, *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_client_that_stalls_does_not_keep_it_from_ending(serve, stream):
    server, place = serve(stream.url, "--writable", "--stop-timeout", "1s")
    client = flight.connect(place)
    writer, _ = client.do_put(_command(rows=2), SCHEMA)
    writer.write_table(_rows(0, 1))
    assert [*client.list_flights()]  # by the same connection: the server has the call before it
    _end(server, code=1)
    assert stream.refresh().tail == 6
    with pytest.raises(flight.FlightUnavailableError):
        writer.close()


def test_swapped_columns_end_a_follower(connect, stream):
    stream.change_schema(rename={"user": "x"})
    stream.append({"x": "bob", "n": 1, "y": "Rome"}, merge_schema=True)
    reader = connect().do_get(_ticket(follow=True, start=7))
    stream.change_schema(rename={"x": "y", "y": "x"})
    stream.append({"x": "Rome", "n": 1, "y": "bob"})
    with pytest.raises(flight.FlightServerError, match=r"SEG_SCHEMA.*'x', 'y'.*start again"):
        reader.read_chunk()
