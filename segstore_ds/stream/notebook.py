"""What a notebook shows of a stream: a table of facts, as HTML."""

from collections.abc import Mapping
from html import escape


def to_html(title: str, facts: Mapping[str, object]) -> str:
    """Return a table of facts; texts are escaped, since they may come from data. Pure.

    >>> to_html("a<b", {"n": 1})
    '<table><caption>a&lt;b</caption><tr><th>n</th><td>1</td></tr></table>'
    """
    rows = (
        f"<tr><th>{escape(str(name))}</th><td>{escape(str(fact))}</td></tr>"
        for name, fact in facts.items()
    )
    return f"<table><caption>{escape(title)}</caption>{''.join(rows)}</table>"
