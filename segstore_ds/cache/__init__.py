"""The write cache and the read cache.

The write cache holds buffers between the producers of bytes and the channel that writes them. The
read cache holds verified buffers for later reads. Both know bytes and channels, but no formats and
no storage; their callers connect them.
"""
