"""Bearer tokens."""

import hmac
from collections.abc import Iterable

from tessera.server.errors import AuthenticationError


def check_key(authorization: str | None, keys: Iterable[str]) -> None:
    """Raises AuthenticationError unless the Authorization header carries one of `keys`.

    Every key is compared, in constant time, so that timing says nothing about any of them.
    """
    scheme, _, token = (authorization or "").partition(" ")
    given = token.strip().encode()
    matches = [hmac.compare_digest(given, key.encode()) for key in keys]
    if scheme.lower() != "bearer" or not any(matches):
        raise AuthenticationError("give a valid API key: Authorization: Bearer <key>")
