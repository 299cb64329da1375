"""The name of a JSON key, header, parameter or variable in, the kind of what it holds out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from etude.experience.redaction.matches import PLACEHOLDER

_PASSWORD = (
    r"passw(?:or)?d|passwort|passphrase|passcode|pwd|"
    r"(?:db|user|smtp|mail|mysql|pg|postgres|redis|admin|root|ftp|ssh|proxy|login)pass"
)
_SECRET = (
    r"secret|token|credentials?|authorization|cookies?|connectionstring|sessionid|sessid|jwt|bearer|"
    r"(?:api|access|secret|private|account|encryption|signing|auth|ssh|master|shared|license|service|storage|"
    r"subscription|session|hmac|webhook|aes|rsa|pgp|admin|client|app|sas|host|deploy|openai|anthropic)key"
)
_NAME = re.compile(
    rf"(?:(?P<password>{_PASSWORD})|{_SECRET})(?:[0-9]|hash|value|confirm(?:ation)?|base64|b64|plain|raw|text)?\Z"
)
_HARMLESS = re.compile(
    r"(?:page|next|continuation|sync|stop|start|end|eos|bos|pad|unk|mask|sep|cls|special|first|last|per|new|cancellation|"
    r"input|output|prompt|completion|max|min|total|num|n|each|every|this|current)tokens?\Z|tokentype\Z"
)
_MAX_NAMES, _MAX_NAME_CHARS = 10_000, 100


class SecretNames:
    """Says of a name whether what it holds is secret: `db_password`, `X-Api-Key` and `clientSecret` are."""

    def __init__(self, extra: Iterable[str] = ()) -> None:
        self._extra = frozenset(map(_plain, extra))
        self.kind = lru_cache(_MAX_NAMES)(self._judge)

    def _judge(self, name: str) -> str | None:
        if len(name) > _MAX_NAME_CHARS or PLACEHOLDER.search(name):
            return None
        plain = _plain(name)
        if plain in self._extra:
            return "secret"
        match = None if _HARMLESS.search(plain) else _NAME.search(plain)
        return None if match is None else "password" if match["password"] else "secret"


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()
