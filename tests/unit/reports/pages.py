"""A page read back: its elements, where they stand and what they say."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOID = {"meta", "input", "br", "path"}


class Page(HTMLParser):
    """The page as a flat list of elements; every one knows the ids and classes it stands in, and its own text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text("utf-8")
        self.open: list[dict[str, Any]] = []
        self.elements: list[dict[str, Any]] = []
        self.feed(self.source)
        assert [e["tag"] for e in self.open] == [], "every element is closed"
        ids = [e["attrs"]["id"] for e in self.elements if "id" in e["attrs"]]
        assert len(ids) == len(set(ids)), "no id is given twice"

    def asks_nothing_of_the_network(self) -> bool:
        outside = [e for e in self.elements if {"src", "href", "srcset", "data", "xlink:href"} & e["attrs"].keys()]
        styles = "".join(e["text"] for e in self.elements if e["tag"] == "style")
        return not (outside or self.find("script") or re.search(r"url\((?!#)|@import", self.source + styles))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = {"tag": tag, "attrs": dict(attrs), "text": "", "within": list(self.open)}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop()["tag"] == tag

    def handle_data(self, data: str) -> None:
        if data.strip() or "\n" not in data:  # line breaks between elements are not text
            for element in self.open:
                element["text"] += data

    def find(self, tag: str, *, kind: str | None = None, within: str | None = None) -> list[dict[str, Any]]:
        return [
            e
            for e in self.elements
            if e["tag"] == tag
            and (kind is None or kind in str(e["attrs"].get("class")).split())
            and (within is None or any(outer["attrs"].get("id") == within for outer in e["within"]))
        ]

    @property
    def text(self) -> str:
        return " ".join(e["text"] for e in self.elements if e["tag"] == "main")

    def table(self) -> dict[str, list[str]]:
        """The comparison: cells by the name of the row."""
        rows: dict[str, list[str]] = {}
        for cell in [e for e in self.elements if e["tag"] in ("td", "th")]:
            row = next((o for o in reversed(cell["within"]) if o["tag"] == "tr"), None)
            if any(o["attrs"].get("id") == "comparison" for o in cell["within"]) and row is not None:
                rows.setdefault(row["text"], []).append(cell["text"])
        return {cells[0]: cells[1:] for cells in rows.values()}
