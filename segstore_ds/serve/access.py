"""Who may call the server: bearer tokens, one a line of a file, that may read or also write."""

import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyarrow import flight

from segstore_ds.errors import InvalidInputError

RIGHTS = ("read", "write")  # who may write may also read
MIDDLEWARE = "segstore"


class Caller(flight.ServerMiddleware):  # type: ignore[misc]
    """What one call may do."""

    def __init__(self, right: str) -> None:
        self.right = right


class Tokens(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Looks at the header `authorization: Bearer TOKEN` of each call.

    Without tokens everybody may do everything that the server offers.
    """

    def __init__(self, tokens: Sequence[tuple[str, bytes]]) -> None:
        super().__init__()
        self._tokens = tokens

    def start_call(self, _info: flight.CallInfo, headers: Mapping[str, list[str]]) -> Caller:
        """Return the caller, or raise FlightUnauthenticatedError."""
        if not self._tokens:
            return Caller("write")
        given = {name.lower(): values for name, values in headers.items()}
        scheme, _, token = given.get("authorization", [""])[0].partition(" ")
        # Every token is compared, and in constant time: the time tells nothing of them.
        right = ""
        for allowed, known in self._tokens:
            if hmac.compare_digest(token.strip().encode(), known) and scheme.lower() == "bearer":
                right = allowed
        if not right:
            raise flight.FlightUnauthenticatedError(
                "give a token of this server in the header 'authorization: Bearer TOKEN'"
            )
        return Caller(right)


def read_tokens(path: Path) -> list[tuple[str, bytes]]:
    """Return the right and the token of each line `read TOKEN` or `write TOKEN`; `#` is a comment.

    Raises:
        InvalidInputError: A line is something else, or there is no token. Texts show none.
    """
    tokens = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0] not in RIGHTS:
            raise InvalidInputError(
                "a line of the file of tokens is not 'read TOKEN' or 'write TOKEN'",
                file=str(path),
                line=number,
            )
        tokens.append((words[0], words[1].encode()))
    if not tokens:
        raise InvalidInputError("the file of tokens has no token", file=str(path))
    return tokens
