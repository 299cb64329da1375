"""URLs and API keys of HTTP services: checked before anything is sent; keys are never shown."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from etude.contracts.errors import EtudeError

_HOST = re.compile(r"@([^@,]*)(?=,|$)")
_SECRET_OPTION = re.compile(r"([?&][^=&]*(?:pass|secret|token|key)[^=&]*=)[^&]*", re.IGNORECASE)


def mask_url(url: str) -> str:
    """A URL, or several separated by commas, without users and passwords, so that it may be shown and logged."""
    if "@" in url:
        scheme = url.partition("://")[0] + "://" if re.match(r"[a-z0-9+]+://", url) else ""
        url = f"{scheme}…@{','.join(_HOST.findall(url))}"
    return _SECRET_OPTION.sub(r"\1…", url)


def checked_url(url: str, *, of: str, key_in: str, error: type[EtudeError]) -> SplitResult:
    """The parts of the URL `of` a service; `key_in` says where its API key belongs instead."""
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
    """The Authorization header for a key; empty without a key."""
    if not api_key:
        return {}
    if not api_key.isascii() or not api_key.isprintable() or " " in api_key:
        raise error("the API key holds a character no key has (a blank, a line end?): expected printable ASCII")
    return {"Authorization": f"Bearer {api_key}"}
