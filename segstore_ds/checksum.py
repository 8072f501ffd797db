"""CRC-32 of stored bytes, by zlib-ng where it is installed: the same number, much faster."""

import zlib
from collections.abc import Callable
from contextlib import suppress

_PROBE = bytes(range(256)) * 4  # long enough for a processor's own instructions

crc32: Callable[..., int] = zlib.crc32
with suppress(ImportError):
    from zlib_ng import zlib_ng

    if zlib_ng.crc32(_PROBE, 1) == zlib.crc32(_PROBE, 1):  # else every read would look damaged
        crc32 = zlib_ng.crc32
