"""The dashboard and the page of alerts ask for exported metrics alone, with their labels."""

import json
import re
from pathlib import Path

import pytest

from segstore_ds.observe.series import SERIES

PACKAGE = Path(__file__).parents[3] / "segstore_ds"
DASHBOARD = json.loads((PACKAGE / "data/grafana.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
PAGE = (PACKAGE / "docs/operate.md").read_text()
EXPORTED = {series.prometheus_name: series for series in SERIES.values()}


def names(text):
    return re.findall(r"\bsegstore_[a-z_]+", text)


def targets():
    return [target for panel in PANELS for target in panel["targets"]]


def test_dashboard_asks_for_what_is_exported():
    asked = {name for target in targets() for name in names(target["expr"])}
    lists = [json.dumps(one["query"]) for one in DASHBOARD["templating"]["list"]]
    asked |= {name for text in lists for name in names(text)}
    assert asked <= {*EXPORTED}
    assert len(asked) > 30


def test_legends_and_selectors_name_labels_that_the_metrics_have():
    for target in targets():
        (name,) = names(target["expr"])
        labels = {*EXPORTED[name].labels}
        assert {*re.findall(r"{{(\w+)}}", target["legendFormat"])} <= labels, name
        selected = {*re.findall(r"[{,](\w+)=~", target["expr"])}
        assert selected == labels & {"stream"}, name


def test_counters_are_asked_for_their_growth_and_gauges_are_not():
    for target in targets():
        (name,) = names(target["expr"])
        grows = bool(re.match(r"(rate|increase)\(", target["expr"]))
        assert grows == EXPORTED[name].counter, name


@pytest.mark.parametrize("section", ["Alerts", "Streaming queries", "Grafana"])
def test_page_names_metrics_that_are_exported(section):
    text = PAGE.split(f"\n### {section}\n")[1].split("\n##")[0]
    assert {*names(text)} - {"segstore_ds"} <= {*EXPORTED}
