"""The write cache: buffers between those who make bytes and the channel that takes them.

Knows bytes and channels, neither formats nor storage; the engine joins them.
"""
