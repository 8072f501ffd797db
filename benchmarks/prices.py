"""What requests and storage cost by a published price list."""

from collections.abc import Mapping

# Amazon S3, storage class Standard, US East (N. Virginia), the first 50 TB of a month: the list
# prices of https://aws.amazon.com/s3/pricing as of 2025. USD a request; a GB has 2^30 bytes there.
PRICE_LIST = "Amazon S3 Standard, US East (N. Virginia), list prices as of 2025"
PER_REQUEST = {
    "put": 0.005 / 1000,
    "list": 0.005 / 1000,
    "get": 0.0004 / 1000,
    "head": 0.0004 / 1000,
    "delete": 0.0,
}
PER_GB_MONTH = 0.023


def price_requests(requests: Mapping[str, float]) -> float:
    """Return the USD of requests by kind.

    >>> round(price_requests({"put": 1000, "get": 10_000, "delete": 5}), 6)
    0.009
    """
    return sum(PER_REQUEST[kind] * count for kind, count in requests.items())


def price_storage(mean_bytes: float) -> float:
    """Return the USD of a month in which so many bytes are stored on average.

    >>> price_storage(10 << 30)
    0.23
    """
    return mean_bytes / (1 << 30) * PER_GB_MONTH
