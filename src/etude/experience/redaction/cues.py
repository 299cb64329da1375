"""The words before a number in, what they say it is out. Every word is judged once and remembered."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_WORDS = re.compile(r"[^\W\d_]++(?!_[0-9]+\])|[$€£¥]")  # a placeholder is no word
_CALLED = re.compile(
    r"phone|fono|fon\b|tel\b|telef|téléf|tél|call(?!s\b|back|able)|mobil|móvil|mob\b|cell(?!s)|celular|fax|dial|whatsapp|sms\b|"
    r".*(?:phone|mobile|telefon|rufnummer|telefone)|hotline|landline|handy|телефон|тел\b|моб|电话|電話|手机|携帯|.*טלפון|"
    r".*هاتف|جوال|โทร|전화"
)
_REACHED = re.compile(
    r"reach(?!ed)|contact|office|desk|home\b|work\b|text\b|ring\b|direct|portable|ph\b|pager|kontakt|numéro"
)
_NUMBERED = re.compile(r"number|nummer|numero|número|nr\b|no\b")
_OTHERWISE = re.compile(
    r".*order|invoice|.*account|acct|ref|.*id\b|track|ticket|licen[cs]e|passport|serial|isbn|version|zip|postal|postcode|"
    r"amount|total|price|balance|.*time|epoch|.*date\b|born|port\b|size|bytes|lines?\b|rows?\b|commit|build|hash|seed|"
    r"sku\b|policy|claim|badge|.*card\b|iban|ssn\b|ts\b|created|updated|member|customer|client\b|student|employee|case\b|"
    r"booking|reservation|confirmation|flight|routing|[$€£¥]"
)
_SOMEBODY = frozenset(("me", "us", "him", "her", "them", "my", "our"))
"""Reach me, text us, my number: of a phone, even if its digits stand in one piece."""
_CARD = re.compile(r".*card|credit|debit|visa|amex|maestro|diners|cc\b|pan\b|karte|carte|tarjeta|cartão|carta")
_NATIONAL = {
    r"cpf\b": "br.cpf",
    r"bsn\b|burgerservice": "nl.bsn",
    r"pesel\b": "pl.pesel",
    r"aadha?ar": "in_.aadhaar",
    r"sin\b|insurance": "ca.sin",
    r"nhs\b": "gb.nhs",
    r"nir\b|sécurité|insee\b": "fr.nir",
    r"personnummer": "se.personnummer",
    r"fødselsnummer": "no.fodselsnummer",
    r"cpr\b": "dk.cpr",
    r"steuer|idnr\b": "de.idnr",
    r"dni\b|nif\b": "es.dni",
    r"cnp\b": "ro.cnp",
    r"rodné": "cz.rc",
    r"ahv|avs\b": "ch.ssn",
    r"hetu\b|henkilötunnus": "fi.hetu",
    r"rijksregister|registre": "be.nn",
}
"""Words next to national ids, and the checks in python-stdnum."""
_SSN = re.compile(r"ssns?\b|.*ssn\b|security|itin\b|tin\b|taxpayer")


class Sense(NamedTuple):
    """What words say of a number after them."""

    phone: str | None = None  # called, reached: of a phone; otherwise: of something else
    card: bool = False
    ssn: bool = False
    national: str | None = None


def read_cues(before: str) -> Sense:
    """What the words before a number say together; of phones, what the nearest says."""
    phone: str | None = None
    numbered, card, ssn, national, somebody = False, False, False, None, False
    for distance, word in enumerate(reversed(_WORDS.findall(before))):
        sense = _sense(word)
        somebody = somebody or word in _SOMEBODY
        if sense is _NOTHING:
            continue
        if sense.phone == "numbered":  # of what, the words before may say
            numbered = True
        elif phone is None and not (sense.phone == "otherwise" and distance > 3):  # too far away to mean this one
            phone = sense.phone
        card, ssn, national = card or sense.card, ssn or sense.ssn, national or sense.national
    phone = phone or ("reached" if numbered else None)
    return Sense("called" if phone == "reached" and somebody else phone, card, ssn, national)


def sense_of(name: str) -> Sense:
    """What a name says of a number it holds."""
    return read_cues(name.lower())


@lru_cache(20_000)
def _sense(word: str) -> Sense:
    phones = (("called", _CALLED), ("reached", _REACHED), ("otherwise", _OTHERWISE), ("numbered", _NUMBERED))
    phone = next((name for name, form in phones if form.match(word)), None)
    national = next((module for cue, module in _NATIONAL.items() if re.match(cue, word)), None)
    sense = Sense(phone, _CARD.match(word) is not None, _SSN.match(word) is not None, national)
    return _NOTHING if sense == _NOTHING else sense


_NOTHING = Sense()
