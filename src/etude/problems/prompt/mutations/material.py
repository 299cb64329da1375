"""Where the instructions of a prompt end and the text begins that it works on."""

from __future__ import annotations

import re

from etude.problems.prompt.mutations.document import Document
from etude.problems.prompt.mutations.wording import words

NOUNS = (
    "text|sentences?|paragraphs?|passages?|e-?mails?|messages?|letters?|reviews?|articles?|documents?|stor(?:y|ies)|"
    "comments?|tweets?|transcripts?|conversations?|dialogues?|code|inputs?|content|poems?|essays?|posts?|notes?|"
    "abstracts?|"
    "words?|phrases?|quotes?|data|examples?|logs?|lyrics|descriptions?|drafts?|tickets?|questions?|prompts?|"
    "context|q|user"
)
VERBS = (
    "translate|rewrite|rephrase|reword|proofread|paraphrase|correct|edit|polish|improve|shorten|summari[sz]e|"
    "classify|"
    "simplify|reply to|respond to|fix|label|tag|convert|complete|continue|analy[sz]e|critique|grade|review|annotate"
)
WITH_COLON = re.compile(
    rf"(?:\b(?:following|below|this|these|the|my|our|an?)\b[^.:\n]{{0,40}}\b(?:{NOUNS})\b[^.:\n]{{0,40}}"
    rf"|\b(?:{VERBS})\b[^.:\n]{{0,80}}|^\W{{0,4}}(?:{NOUNS})\b[^.:\n]{{0,30}}):"
)
"""`Translate the following text:` and `Input:`, in a line in lower case: everything after it is material."""
WITHOUT_COLON = re.compile(
    rf"\b(?:{VERBS})\b[^.:\n]{{0,40}}\b(?:this|these|the following|below|my|it)\b|\b(?:{NOUNS}) (?:below|is below|"
    rf"follows)\b"
)
"""`Proofread my letter`: the blocks after it may be material."""
TAG = re.compile(r"<(?!/)([A-Za-z_][\w-]*)[^<>\n]{0,80}>")
INSTRUCTING_TAGS = words(
    "background constraints format goal guidelines instruction instructions objective output_format persona "
    "prompt requirements role rules system task tasks"
)


def material_start(document: Document) -> int:
    """The position from which on nothing is an instruction for sure; the end of the text where there is none."""
    found = len(document.text)
    for number, block in enumerate(document.blocks):
        if block.start >= found:
            break
        if block.kind in ("paragraph", "list", "heading"):
            found = min(found, _in_block(document, number))
    return found


def _in_block(document: Document, number: int) -> int:
    block = document.blocks[number]
    places = [len(document.text)]
    line = block.start
    for each in document.lower[block.start : block.end].split("\n"):
        colon = WITH_COLON.search(each) if ":" in each else None
        if colon:
            places.append(line + colon.end())
            break
        line += len(each) + 1
    tag = next((tag for tag in TAG.finditer(document.of(block)) if tag[1].lower() not in INSTRUCTING_TAGS), None)
    if tag:
        places.append(block.start + tag.start())
    if WITHOUT_COLON.search(document.lower[block.start : block.end]):
        places.append(block.end)
    return min(places)
