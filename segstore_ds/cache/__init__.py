"""The write cache: buffers between the producers of bytes and the channel that writes them.

It knows bytes and channels, but neither formats nor storage; its callers connect them.
"""
