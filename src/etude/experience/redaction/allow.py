"""A tenant's allow-list in, whether a finding is to be left alone out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from etude.contracts.errors import ConfigError
from etude.experience.redaction.matches import Match

_MARKS = re.compile(r"[\s()./+-]")


class AllowList:
    """Values, `@domain`s, address ranges as `10.0.0.0/8`, and regular expressions after `re:`."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._values: set[str] = set()
        self._domains: list[str] = []
        self._networks: list[IPv4Network | IPv6Network] = []
        self._patterns: list[re.Pattern[str]] = []
        for entry in entries:
            self._add(entry)

    def __bool__(self) -> bool:
        return bool(self._values or self._domains or self._networks or self._patterns)

    def holds(self, found: Match, value: str) -> bool:
        if value.lower() in self._values or _MARKS.sub("", found.key).lower() in self._values:
            return True
        if found.kind == "email" and any(found.key.endswith(domain) for domain in self._domains):
            return True
        if found.kind == "ip" and any(ip_address(found.key) in network for network in self._networks):
            return True
        return any(pattern.fullmatch(value) for pattern in self._patterns)

    def _add(self, entry: str) -> None:
        if entry.startswith("re:"):
            try:
                self._patterns.append(re.compile(entry[3:]))
            except re.error as error:
                raise ConfigError(f"allow: {entry!r} is not a regular expression: {error}") from error
        elif entry.startswith("@"):
            self._domains.append(entry.lower())
        elif re.fullmatch(r"[0-9a-fA-F:.]+/[0-9]+", entry):
            try:
                self._networks.append(ip_network(entry, strict=False))
            except ValueError as error:
                raise ConfigError(f"allow: {entry!r} is not a range of addresses like 10.0.0.0/8: {error}") from error
        elif entry:
            self._values |= {entry.lower(), _MARKS.sub("", entry).lower()}
        else:
            raise ConfigError("allow: an entry is empty; give a value, @domain, range of addresses or re:expression")
