"""Texts of unknown origin for people: on a terminal, in JSON and in HTML.

A control character or a mark of direction in data, a name or an error could move the cursor, forge
a line or reorder what is read. Nothing else decides what is escaped.
"""

import html
import json
import unicodedata
from collections.abc import Callable
from typing import Any


def printable(text: str) -> str:
    r"""Return a text in which control characters, line ends and marks of direction are escaped.

    >>> printable("a\x1b[31m\u202e é")
    'a\\x1b[31m\\u202e é'
    """
    return _escape(text, lambda char: char.encode("unicode_escape").decode())


def printable_json(value: Any) -> str:
    r"""Return a value as one line of JSON that means the same and is printable.

    >>> printable_json({"é": "\x9b\u202e"})
    '{"é": "\\u009b\\u202e"}'
    """
    text = json.dumps(value, ensure_ascii=False)
    return _escape(text, lambda char: json.dumps(char)[1:-1])  # only texts hold such characters


def printable_html(text: str) -> str:
    r"""Return a text for HTML and SVG.

    >>> printable_html("<b>\x07")
    '&lt;b&gt;\\x07'
    """
    return html.escape(printable(text))


def _escape(text: str, escaped: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    # Spaces of other widths count as not printable, but they do no harm.
    kept = (char.isprintable() or unicodedata.category(char) == "Zs" for char in text)
    return "".join(char if keep else escaped(char) for char, keep in zip(text, kept, strict=True))
