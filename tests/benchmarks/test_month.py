"""What the month of commits adds up: prices, a month of delta-rs, requests of a proxy, graphs."""

import http.client
import http.server
import threading
from collections import Counter
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

from benchmarks.commit_months import simulate
from benchmarks.delta_months import DAY_COMMITS, DeltaRun, project
from benchmarks.graph import Panel, draw
from benchmarks.prices import price_requests, price_storage
from benchmarks.request_counter import counting


def test_prices_are_those_of_the_list() -> None:
    """Puts and lists cost 12.5 times as much as gets; deletes nothing."""
    assert round(price_requests({"put": 2_000_000, "list": 1000, "delete": 9}), 6) == 10.005
    assert round(price_requests({"get": 1_000_000, "head": 1_000_000}), 6) == 0.8
    assert price_storage(100 << 30) == 2.3


def test_month_of_delta_grows_with_its_log_and_dropped_files() -> None:
    """A night's requests per file scale with the files, its other requests do not."""
    run = DeltaRun(
        commits=100,
        appends=Counter(put=202, get=400),
        optimize=Counter(get=300, put=2),
        cleanup=Counter(list=7),
        file_bytes=2000.0,
        commit_bytes=900.0,
        checkpoint_bytes=0.0,
        tombstone_bytes=0.0,
        compacted_bytes=1000,
    )
    two = project(run, 2, log_kept_days=30)
    assert two.requests == {
        "put": 2 * (2.02 * DAY_COMMITS + 2),
        "get": 2 * 7 * DAY_COMMITS,
        "list": 14,
    }
    assert two.bytes == 2 * DAY_COMMITS * 2900 + 10 * DAY_COMMITS
    short = project(run, 30, log_kept_days=1)
    assert short.bytes == DAY_COMMITS * (900 + 8 * 2000 + 29 * 10)


def test_simulated_hours_are_sampled_and_counted() -> None:
    """Two hundred commits in a day: requests are counted by who sends them."""
    month = simulate(200, 432)
    assert [sample.day for sample in month.samples][-1] == 1
    (day,) = month.days
    assert set(day) == {"append and upkeep", "two readers", "nightly compaction"}
    assert day["append and upkeep"]["put"] >= 200
    assert day["two readers"]["get"] > 0
    last = month.samples[-1]
    assert last.log + last.live + last.dropped + last.status <= last.bytes


def test_graph_is_a_document_with_a_line_for_each_name() -> None:
    """And one label for each."""
    panel = Panel("bytes", [1, 2, 3], {"all": [5, 7, 9], "events": [1, 2, 3]})
    root = ET.fromstring(draw([panel, panel]))  # noqa: S314 - made here
    lines = [part for part in root.iter() if part.tag.endswith("polyline")]
    assert len(lines) == 4
    texts = [part.text for part in root.iter() if part.tag.endswith("text")]
    assert texts.count("events") == 2


class _Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def __getattr__(self, name: str) -> object:
        if name.startswith("do_"):
            return self.answer
        raise AttributeError(name)

    def log_message(self, *_: object) -> None:
        pass


def test_proxy_counts_requests_by_kind() -> None:
    """As they are priced: starts and ends of uploads are puts, deletions in bulk are deletions."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with counting(f"http://127.0.0.1:{server.server_port}") as (endpoint, counter):
            client = http.client.HTTPConnection(urlsplit(endpoint).netloc)
            for method, path, body in (
                ("GET", "/b?list-type=2&prefix=x", None),
                ("GET", "/b/key", None),
                ("PUT", "/b/key", b"PAR1" * 50_000),
                ("POST", "/b/key?uploads", b""),
                ("POST", "/b?delete", b"<x/>"),
                ("DELETE", "/b/key", None),
                ("HEAD", "/b/key", None),
            ):
                client.request(method, path, body)
                client.getresponse().read()
            client.close()
            assert counter.take() == Counter(list=1, get=1, put=2, delete=2, head=1)
            assert counter.take() == Counter()
        server.shutdown()
