"""The token with which a client logs in: from its config, a file or the environment.

Secrets are not for command lines, which every user of a machine can see. The file is read when a
client is created.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from millstream.clients.http.core.config import ClientConfig
from millstream.errors import InvalidConfig

TOKEN_VARIABLE = "MILLSTREAM_TOKEN"  # noqa: S105 - the name of a variable.
TOKEN_FILE_VARIABLE = "MILLSTREAM_TOKEN_FILE"  # noqa: S105

TOKEN_SIZE_MAX = 1024
"""Characters of a token. Those of a node have 48."""


def token_of(config: ClientConfig, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the token of a client; `None` if it has none.

    What the config says precedes the environment, and a token precedes a file.
    """
    environment = os.environ if environment is None else environment
    if config.token is not None:
        return check_token(config.token, "token")
    path = config.token_file
    if path is None and (text := environment.get(TOKEN_VARIABLE)):
        return check_token(text.strip(), TOKEN_VARIABLE)
    path = path or environment.get(TOKEN_FILE_VARIABLE)
    return None if not path else check_token(_read(path), path)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(TOKEN_SIZE_MAX + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InvalidConfig(f"token file {path}: {reason}") from None


def check_token(text: str, place: str) -> str:
    """Return a token if it can be sent. The error does not repeat it."""
    is_word = text.isascii() and text.isprintable() and " " not in text
    if not 1 <= len(text) <= TOKEN_SIZE_MAX or not is_word:
        raise InvalidConfig(
            f"{place} must have one token of 1 to {TOKEN_SIZE_MAX} printable characters without"
            f" spaces, got {len(text)} characters"
        )
    return text
