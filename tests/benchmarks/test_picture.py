"""The picture of how old events were when they could be read."""

from xml.etree import ElementTree as ET

from benchmarks.picture import COLOURS, draw

SVG = "{http://www.w3.org/2000/svg}"


def test_each_rate_has_a_panel_with_a_line_for_each_format():
    """Ours and Parquet's are of the newest session, though they ran in others, too."""
    raw = {
        "newest segstore 10": [(0.0, 0.1, 0.2), (60.0, 0.1, 5.0)],
        "newest parquet 10": [(60.0, 0.1, 0.4)],
        "delta segstore 10": [(0.0, 0.1, 0.2), (30.0, 0.1, 0.2), (60.0, 0.1, 0.2)],
        "delta delta 10": [(60.0, 0.1, 0.9)],
        "newest segstore 1000": [(60.0, 0.1, 0.2)],
    }
    root = ET.fromstring(draw(raw))  # noqa: S314 - our own
    lines = [line.attrib for line in root.iter(f"{SVG}polyline")]
    colours = [line["stroke"] for line in lines]
    drawn = ("segstore", "segstore", "parquet", "delta")
    assert sorted(colours) == sorted(COLOURS[name] for name in drawn)
    texts = {text.text for text in root.iter(f"{SVG}text")}
    assert {"10 events a second", "1,000 events a second", "segstore", "Delta Lake"} <= texts
    points = lines[colours.index(COLOURS["segstore"])]["points"].split(" ")
    (left, low), (right, high) = (map(float, point.split(",")) for point in points)
    assert left < right
    assert low > high  # downwards, older is higher
