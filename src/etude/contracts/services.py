"""Addresses and keys of HTTP services as people write them: checked before anything is sent, keys never shown."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from etude.contracts.errors import EtudeError


def checked_url(url: str, *, of: str, key_in: str, error: type[EtudeError]) -> SplitResult:
    """The parts of a URL `of` a service, whose key is given `key_in` another place."""
    if "@" in url:  # not shown: it may be a password
        raise error(f"url holds an '@': give a key {key_in}, not in the URL")
    wrong = error(f"url is {url.partition('?')[0]!r}: expected that of {of}, http://host:port/v1")
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as cause:
        raise wrong from cause
    if not fine or not url.isascii() or not url.isprintable() or " " in url:
        raise wrong
    return parts


def authorisation(api_key: str | None, *, error: type[EtudeError]) -> dict[str, str]:
    """The header that carries a key, none without one."""
    if not api_key:
        return {}
    if not api_key.isascii() or not api_key.isprintable() or " " in api_key:
        raise error("the API key holds a character no key has (a blank, a line end?): expected printable ASCII")
    return {"Authorization": f"Bearer {api_key}"}
