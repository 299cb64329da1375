"""Text in; e-mail addresses, passwords in URLs, and IPv6 addresses out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from etude.experience.redaction.matches import PLACEHOLDER, Match, View
from etude.experience.redaction.numbers import find_ipv6

_LOCAL = re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]{1,64}\Z")
_DOMAIN = re.compile(r"(?:[^\W_](?:[\w-]{0,62}[^\W_])?\.){1,8}(?:[^\W\d_]{2,24}|xn--[a-z0-9-]{2,40})(?![\w-])")
_FILES = frozenset(("png", "jpg", "jpeg", "gif", "svg", "webp", "css", "js", "ts", "tsx", "jsx", "mjs", "json", "py"))
_PARENS = "'*=/?|{}`!#$%&^~."

# A colon is what URLs with passwords and IPv6 addresses share; :12:30 and :12:30Z are times.
_COLON = re.compile(r":(?://(?=[^\s/@]{1,600}@)|(?:(?![0-5]\d:[0-5]\d(?:Z\b|(?![:\w])))[0-9a-fA-F]{1,4})?:)")
_CREDENTIALS = re.compile(r"([^\s/@:\"'<>\x00\x01]{0,256}):((?!\d{1,5}[?#])[^\s/\"'<>\x00\x01]{1,512})@")
_USER = re.compile(r"(?=[^\s/@:]{0,255}[0-9])([^\s/?#@:\"'<>\x00\x01]{20,256})@")


def find_emails(view: View) -> Iterator[Match]:
    text, at = view.text, view.text.find("@")
    while at >= 0:
        domain = _DOMAIN.match(text, at + 1)
        if domain and domain[0].rpartition(".")[2].lower() not in _FILES:
            local = _LOCAL.search(text, max(0, at - 64), at)
            name = local[0].lstrip(_PARENS) if local else ""
            if view.low[at - len(name) - 1 : at - len(name)] == b"\\":  # \n before it, as JSON in a string has it
                name = name[1:] if name[:1] in "nrt" else name
            if name and name != "git":
                yield Match(
                    "email", at - len(name), domain.end(), f"{name}@{domain[0]}".lower(), "it is an e-mail address"
                )
        at = text.find("@", at + 1)


def find_after_colons(view: View) -> Iterator[Match]:
    done = 0
    for match in _COLON.finditer(view.text):
        if match.start() < done:
            continue
        if match[0] == "://":
            found = _url_password(view.text, match.end())
        else:
            found, done = find_ipv6(view, match.start())
        if found:
            yield found


def _url_password(text: str, start: int) -> Match | None:
    pair = _CREDENTIALS.match(text, start)
    if pair and not PLACEHOLDER.fullmatch(pair[2]):
        return Match("url_password", pair.start(2), pair.end(2), pair[2], "it is the password in a URL")
    user = None if pair else _USER.match(text, start)
    return user and Match("url_password", user.start(1), user.end(1), user[1], "it is the token in a URL")
