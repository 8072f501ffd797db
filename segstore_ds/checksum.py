"""CRC-32 of stored bytes, by zlib-ng if it is installed: the same value, much faster."""

import zlib
from collections.abc import Callable
from contextlib import suppress

_PROBE = bytes(range(256)) * 4  # long enough to reach zlib-ng's vectorised code

crc32: Callable[..., int] = zlib.crc32
with suppress(ImportError):
    from zlib_ng import zlib_ng

    # With a wrong CRC-32, every object would look damaged.
    if zlib_ng.crc32(_PROBE, 1) == zlib.crc32(_PROBE, 1):
        crc32 = zlib_ng.crc32
