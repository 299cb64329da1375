"""Digits in; cards, IBANs, national ids, IP addresses and phone numbers out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from ipaddress import ip_address

from etude.experience.redaction.cues import Sense, read_cues
from etude.experience.redaction.matches import Match, View

# Seven digits with at most three other characters between two, or four short numbers, but no ISO date. Reads
# the shape of a text, where one literal ~0 skips most of it.
_START = re.compile(
    rb"~0(?=0{6}|0*+~{1,3}0)(?!000~00~00(?:(?![0~])|[A~]00~00|~(?!0)))(?=(?:~{0,3}0){6}|0{0,2}(?:~0{1,3}){3})"
)
_IBAN_START = re.compile(b"~AA00")  # faster than bytes.find where a text has three letters

_FORM = re.compile(
    r"""(?P<ip>[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?!\.?[0-9A-Za-z_]))
    |(?P<date>(?:19|20)[0-9]{2}([-/.])[01]?[0-9]\3[0-3]?[0-9](?![-/.]?[0-9])
             |[0-3]?[0-9]([-/.])[0-3]?[0-9]\4(?:19|20)[0-9]{2}(?![-/.]?[0-9]))
    |(?P<ssn>[0-9]{3}-[0-9]{2}-[0-9]{4}(?![-0-9A-Za-z_]))
    |(?P<cpf>[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}(?![-0-9A-Za-z_]))
    |(?P<decimal>[0-9]{1,20}[.,][0-9]{5,20}(?![-. ]?[0-9]))""",
    re.VERBOSE,
)
_CARD = re.compile(
    r"""(?P<plain>[0-9]{12,19}(?![0-9A-Za-z_]|\.[0-9]))
    |(?P<grouped>[0-9]{4}(?P<gap>[ -])(?:[0-9]{4}(?P=gap)[0-9]{4}(?P=gap)[0-9]{1,4}|[0-9]{6}(?P=gap)[0-9]{4,5}))
     (?![0-9A-Za-z_])(?P<more>(?P=gap)[0-9]{1,3}(?![0-9A-Za-z_]))?""",
    re.VERBOSE,
)
_PLAIN = re.compile(
    r"[0-9]{7,11}(?![0-9xX#]|[ .\-/()]{1,3}[0-9]| ?(?:ext|office|fax|mob|cell|home|desk|work|phone|tel))"
)
_NOT_PHONES = (None, "otherwise")
_REGION = re.compile(r"[0-9](?:[0-9 ().\-/]{0,40}[0-9])?")
_LETTER = re.compile(r"[A-Za-z](?![0-9A-Za-z_])|ext|x ?[0-9]")
_GAP = r"(?:[ .\-/]|\)[ .\-/]{0,2}|[ \-.]?\(| - |\) - )"
_PHONE = re.compile(rf"[0-9]{{1,15}}(?:{_GAP}[0-9]{{1,12}}){{0,8}}")
_EXTENSION = re.compile(r"[ ,;]{0,2}(?:x|ext\.?|extension|durchwahl|#)[ :.]{0,2}[0-9]{1,6}(?![0-9A-Za-z])", re.I)
_NORTH_AMERICAN = re.compile(r"(?:1[-. ])?[2-9][0-9]{2}([-. ])[0-9]{3}\1[0-9]{4}(?![0-9])")
_TAIL = re.compile(r"[ ,;(\-]{0,3}[A-Za-z#]")

_PLACE = re.compile(r"[ ,(\-]{1,3}(?:\(?(?:office|fax|mobile|mob|cell|home|desk|work|phone|tel|direct))\b")
_NUMBERED = re.compile(r"(?:\bv|version|ver\.?|release|build|[a-z]/)[ :]*\Z")

_NATIONAL_FORM = re.compile(
    r"[0-9](?:[ .\-/+]?[0-9]){6,14}(?:-?[0-9A-Za-z])?(?![0-9A-Za-z_])|[0-9]{6}[-+A][0-9]{3}[0-9A-Z]"
)

IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29,
    "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29,
    "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28,
    "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28,
    "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MN": 20,
    "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29, "PT": 25,
    "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24, "SM": 27,
    "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20, "YE": 30,
}  # fmt: skip


def find_numbers(view: View) -> Iterator[Match]:
    done = 0
    for match in _START.finditer(view.shape):
        start = match.start()  # the shape is off by one: this is the digit
        if start >= done and (found := _classify(view, start)):
            done = found.end
            if found.kind:
                yield found


def find_ibans(view: View) -> Iterator[Match]:
    for match in _IBAN_START.finditer(view.shape):
        if found := _iban(view, match.start()):
            yield found


def _classify(view: View, start: int) -> Match | None:
    """A finding without a kind is a number of another sort, whose digits need no second look."""
    text = view.text
    if (
        start > 1
        and (last := text[start - 1]) in ".-:"
        and (text[start - 2].isdigit() if last == ":" else view.is_word(start - 2))
    ):
        return None  # the middle of something: a version, a UUID, an amount, a time
    region = _REGION.match(text, start)
    if region and text[region.end() : region.end() + 1].isalpha() and not _LETTER.match(text, region.end()):
        return None  # the beginning of something: a hash, a UUID
    if region is None or region.end() - start < 7:
        return None
    form = _FORM.match(text, start)
    named = form.lastgroup if form else None
    if form and named in ("date", "decimal"):
        return Match("", start, form.end(), "", "")
    if form and named == "ip":
        return _ip(view, start, form.end())
    cues = read_cues(view.before(start, 48)) if view.has_words(start, 48) else Sense()
    plain = _PLAIN.match(text, start)
    if (
        plain
        and cues.phone in _NOT_PHONES
        and not (cues.ssn or cues.national or cues.card)
        and not _is_plus(text, start)
    ):
        return Match("", start, plain.end(), "", "")
    if form and named == "ssn" and _is_ssn(form[0], cues):
        return Match("ssn", start, form.end(), _digits(form[0]), "it has the form of a US social security number")
    if form and named == "cpf" and import_module("stdnum.br.cpf").is_valid(form[0]):
        return Match("ssn", start, form.end(), _digits(form[0]), "the checksum of a Brazilian CPF holds")
    found = _card(text, start, cues)
    if found is None and (cues.ssn or cues.national):
        found = _national_id(text, start, cues)
    return found or _phone(view, start, cues)


def _ip(view: View, start: int, end: int) -> Match | None:
    parts = view.text[start:end].split(".")
    if any(int(part) > 255 for part in parts) or _NUMBERED.search(view.before(start, 12)):
        return None
    key = ".".join(str(int(part)) for part in parts)
    if key.startswith("127.") or key == "0.0.0.0":  # every machine's own, and so personal to none
        return Match("", start, end, "", "")
    return Match("ip", start, end, key, "it is an IPv4 address")


def find_ipv6(view: View, colon: int) -> tuple[Match | None, int]:
    """The IPv6 address around a colon, and where what might be one ends."""
    text = view.text
    lead = text[max(0, colon - 40) : colon]
    start = colon - len(lead) + len(lead.rstrip(_HEX))
    end = stop = _HEXES.match(text, colon).end()  # type: ignore[union-attr]  # it matches nothing as well
    if end - start > 46:
        return None, stop
    candidate = text[start:end].rstrip(".")
    if candidate.endswith(":") and not candidate.endswith("::"):
        candidate = candidate[:-1]
    end = start + len(candidate)
    few = len(candidate) - candidate.count(":") < 3  # :: and ::1 name no machine
    if few or view.is_word(start - 1) or view.is_word(end) or text[max(0, start - 1) : start] == ":":
        return None, stop
    try:
        address = ip_address(candidate)
    except ValueError:
        return None, stop
    return Match("ip", start, end, str(address), "it is an IPv6 address"), stop


_HEX = "0123456789abcdefABCDEF:."
_HEXES = re.compile(r"[0-9a-fA-F:.]*+")


def _is_ssn(number: str, cues: Sense) -> bool:
    area, group, serial = number.split("-")
    return cues.ssn or (
        area not in ("000", "666") and group != "00" and serial != "0000" and (area < "900" or group >= "50")
    )


def _card(text: str, start: int, cues: Sense) -> Match | None:
    match = _CARD.match(text, start)
    if match is None or text[max(0, start - 1) : start] == "+":
        return None
    ends = (match.end("plain"),) if match["plain"] else (match.end("grouped"), match.end("more"))
    numbers = [(end, _digits(text[start:end])) for end in ends if end > 0]
    for end, digits in numbers:
        if luhn(digits) and (brand := _brand(digits)) and len(digits) >= 13:
            return Match("card", start, end, digits, f"Luhn's checksum holds, and {brand} cards begin so")
    if cues.card:
        for end, digits in numbers:
            if 12 <= len(digits) <= 19 and (luhn(digits) or _brand(digits)):
                return Match("card", start, end, digits, "it is announced as a card number")
    return None


def luhn(digits: str) -> bool:
    """Every second digit from the right is doubled, and its digits summed."""
    code = digits.encode()
    return (sum(code[-1::-2]) + sum(code[-2::-2].translate(_DOUBLED)) - 48 * len(code)) % 10 == 0


_DOUBLED = bytes.maketrans(b"0123456789", b"0246813579")


def _brand(digits: str) -> str | None:
    length, two, four = len(digits), int(digits[:2]), int(digits[:4])
    if digits[0] == "4":
        return "Visa" if length in (13, 16, 19) else None
    if 51 <= two <= 55 or 2221 <= four <= 2720:
        return "Mastercard" if length == 16 else None
    if two in (34, 37):
        return "American Express" if length == 15 else None
    if two in (36, 38, 39) or 3000 <= four <= 3059 or 3090 <= four <= 3099:
        return "Diners Club" if length in (14, 16) else None
    if two in (30, 31, 33, 35) or four in (2131, 1800):
        return "JCB" if length in (15, 16) else None
    if 2200 <= four <= 2204:
        return "Mir" if length == 16 else None
    if two in (60, 62, 64, 65, 81, 82):
        return "Discover, UnionPay or RuPay" if 16 <= length <= 19 else None
    if two == 50 or 56 <= two <= 69 or four == 604:
        return "Maestro" if length == 12 or 16 <= length <= 19 else None
    return None


def _iban(view: View, start: int) -> Match | None:
    country = view.text[start : start + 2].upper()
    length = IBAN_LENGTHS.get(country)
    match = length and _iban_form(length).match(view.text, start)
    if not match:
        return None
    plain = re.sub("[ -]", "", match[0]).upper()
    rearranged = "".join(str(int(character, 36)) for character in plain[4:] + plain[:4])
    if int(rearranged) % 97 == 1:
        return Match("iban", start, match.end(), plain, "the checksum of an IBAN holds")
    if "iban" in view.before(start, 30):
        return Match("iban", start, match.end(), plain, "it is announced as an IBAN")
    return None


@lru_cache
def _iban_form(length: int) -> re.Pattern[str]:
    return re.compile(rf"[A-Za-z]{{2}}[0-9]{{2}}(?:[ -]?[A-Za-z0-9]){{{length - 4}}}(?![A-Za-z0-9_])")


def _national_id(text: str, start: int, cues: Sense) -> Match | None:
    form = _NATIONAL_FORM.match(text, start)
    if form is None:
        return None
    if cues.ssn and len(_digits(form[0])) == 9:
        return Match("ssn", start, form.end(), _digits(form[0]), "it is announced as a social security number")
    if cues.national is None or not import_module(f"stdnum.{cues.national}").is_valid(form[0]):
        return None
    key = re.sub(r"\W", "", form[0])
    return Match("ssn", start, form.end(), key, "it is announced as a national id, and its checksum holds")


def _phone(view: View, start: int, cues: Sense) -> Match | None:
    text = view.text
    match = _PHONE.match(text, start)
    if match is None:
        return None
    opened = ")" in match[0] and text[max(0, start - 1) : start] == "("
    weak = cues.phone in _NOT_PHONES and not opened and text[start] != "0" and not _is_plus(text, start)
    if weak and not _NORTH_AMERICAN.match(text, start) and not _TAIL.match(text, match.end()):
        return None
    body = _one_number(match[0])
    end = start + len(body)
    first = start - opened
    plus = text[max(0, first - 1) : first] == "+" or text[max(0, start - 2) : start] == "(+"
    if plus:
        first = start - 1 - (text[max(0, start - 2) : start] in ("+(", "(+"))
    extension = _EXTENSION.match(text, end)
    if view.is_word(first - 1) or (view.is_word(end) and not extension):
        return None
    cue = "called" if _PLACE.match(view.after(end, 14)) else cues.phone
    why = _why_phone(body, cue, plus=plus, opened=opened, extension=extension is not None)
    if why is None:
        return None
    end = extension.end() if extension else end
    return Match("phone", first, end, _digits(text[first:end]), why)


def _one_number(body: str) -> str:
    """Up to where the next number begins: a space after ten digits that were held together otherwise."""
    if len(body) <= 16:
        return body
    size = 0
    for match in re.finditer(r"[0-9]+", body):
        gap = body[match.start() - 1 : match.start()]
        if size >= 7 and (
            size + len(match[0]) > 15 or (gap == " " and size >= 10 and " " not in body[: match.start() - 1])
        ):
            return body[: match.start()].rstrip(" .-/(")
        size += len(match[0])
    return body


def _why_phone(body: str, cue: str | None, *, plus: bool, opened: bool, extension: bool) -> str | None:
    """Why a number is a phone's; None where it is not, or could as well be another."""
    digits = _digits(body)
    if not 7 <= len(digits) <= 15:
        return None
    grouped = len(digits) < len(body)
    if plus and (cue in ("called", "reached") or _is_possible("+" + digits)):
        return "a country code follows a +"
    if cue == "called" or (cue == "reached" and grouped):
        return "it is announced as a phone number"
    if not grouped or cue == "otherwise":
        return None
    if digits.startswith("00") and len(digits) >= 10 and _is_possible("+" + digits[2:]):
        return "a country code follows 00"
    if extension:
        return "an extension follows it"
    if opened and len(digits) <= 12 and not body.startswith(("19", "20")):
        return "its area code is in brackets"
    if (match := _NORTH_AMERICAN.match(body)) and match.end() == len(body):
        return "it is grouped as North American numbers are"
    if digits[0] == "0" and digits[1] != "0" and 9 <= len(digits) <= 12 and "/" not in body[4:]:
        return "it is grouped, and begins with a trunk 0"
    return None


@lru_cache(maxsize=4096)
def _is_possible(number: str) -> bool:
    import phonenumbers

    try:
        return phonenumbers.is_possible_number(phonenumbers.parse(number))
    except phonenumbers.NumberParseException:
        return False


def _is_plus(text: str, start: int) -> bool:
    return start > 0 and text[start - 1] == "+"


def _digits(text: str) -> str:
    return _OTHERS.sub("", text)


_OTHERS = re.compile("[^0-9]+")
