"""The table of metrics, and what exports them."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from segstore_ds.observe.series import SERIES, prometheus_text, sample, to_prometheus


def test_text_is_what_a_parser_of_prometheus_reads():
    url = 'file:///a "b"\\c\nd'
    samples = [
        sample("events", 3, url),
        sample("reader_live", True, url, "r"),
    ]
    text = prometheus_text(samples)
    assert (
        f"# HELP segstore_events {SERIES['events'].meaning}\n" in text
    )  # what the page leaves out
    found = {
        one.name: (one.labels, one.value)
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }
    assert found == {
        "segstore_events": ({"stream": url}, 3),
        "segstore_reader_live": ({"stream": url, "reader": "r"}, 1),
    }


def test_registry_asks_for_samples_at_each_scrape():
    registry, values = CollectorRegistry(), [1, 2]
    to_prometheus(lambda: [sample("events", values.pop(0), "u")], registry)
    assert b'segstore_events{stream="u"} 1.0' in generate_latest(registry)
    assert b'segstore_events{stream="u"} 2.0' in generate_latest(registry)
