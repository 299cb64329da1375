"""Sentences with personal numbers in the formats of many countries, made from a seed, with where the numbers stand.

Nothing in them belongs to anybody: digits are drawn, check digits computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from string import ascii_uppercase
from typing import NamedTuple

# '#' is any digit, '%' one from 1, 'N' one from 2.
PHONES = (
    *("N##-###-####", "(N##)###-####", "(N##) ###-####", "N##.###.####", "1-N##-###-####", "+1-N##-###-####"),
    *("001-N##-###-####", "N##-###-####x###", "N##.###.####x#####", "+1-N##-###-####x####", "(N##)###-####x###"),
    *("N##-###-#### ext. ##", "+1 (N##) ###-####", "N## ### ####", "+1N#########"),  # North America
    *(
        "+44(0)%### ######",
        "0%## ### ####",
        "(0%###) ######",
        "0%### ######",
        "+44 (0)%## ### ####",
        "+44%## #######",
    ),  # UK
    *(
        "+49(0)%## ######",
        "0%##/#######",
        "0%### ######",
        "(0%##) #######",
        "+49 %## ########",
        "0%##-#######",
    ),  # Germany
    *("+33 (0)% ## ## ## ##", "0% ## ## ## ##", "+33 % ## ## ## ##", "0%.##.##.##.##", "0%-##-##-##-##"),  # France
    *("+39 ### ## ######", "3## #######", "0## ### ####"),  # Italy
    *("+34 N## ### ###", "N## ## ## ##", "6## ### ###"),  # Spain
    *("+351 2## ### ###", "(351) 2## ### ###", "9## ### ###"),  # Portugal
    *("+31 (0)%# #######", "0%#-#######", "(0%##)-######", "06-########"),  # Netherlands
    *("+32(0)% #######", "0### ## ## ##", "0% ### ## ##"),  # Belgium
    *("+41 %# ### ## ##", "0%# ### ## ##"),  # Switzerland
    *("+43 (0) % ### ####", "0%### ### ## ##", "06## ### ## ##"),  # Austria
    *("+45 ## ## ## ##", "## ## ## ##", "##-##-##-##"),  # Denmark
    *("+46 (0)%# ### ## ##", "0%#-### ## ##", "0%##-## ## ##", "07#-#######"),  # Sweden
    *("+47 ## ## ## ##", "### ## ###"),  # Norway
    *("+358 %# ### ####", "0%# ### ####", "04# ### ## ##"),  # Finland
    *("+48 ### ### ###", "### ### ###", "## ### ## ##", "(%#) ### ## ##"),  # Poland
    *("+420 ### ### ###", "+421 %## ### ###"),  # Czechia, Slovakia
    *("+36 %# ### ####", "(%#) ### ###", "(%#) ###-###", "06-%#/###-####"),  # Hungary
    *("+386 ## ### ###", "0##-###-###", "0%# ### ## ##"),  # Slovenia
    *("+385 %# #### ###", "0%# ####-###", "09# ### ####"),  # Croatia
    *("+40 %## ### ###", "0%## ### ###"),  # Romania
    *("+30 %## #######", "2##0 ######", "+30 2##0 ######"),  # Greece
    *("+90 (%##) ### ## ##", "0(%##) ### ## ##", "0 (%##) ### ## ##"),  # Turkey
    *("+7 (%##) ###-##-##", "8 (%##) ###-##-##", "+7 %## ### ## ##", "8 %## ### ## ##"),  # Russia
    *("+380 ## ###-##-##", "0%# ###-##-##"),  # Ukraine
    *("+972-%-###-####", "0%-#######", "05#-#######"),  # Israel
    *("+81 %#-####-####", "0%-####-####", "090-####-####", "0##-###-####"),  # Japan
    *("+82 %# #### ####", "0%#-####-####", "02-###-####"),  # Korea
    *("+86 1## #### ####", "1## #### ####"),  # China
    *("+91 ##### #####", "0%########", "+91-##########", "(0%##) #######"),  # India
    *("+61 % #### ####", "(0%) #### ####", "04## ### ###", "0% ########"),  # Australia
    *("+64 %# ### ####", "(0%) ### ####", "02# ### ####"),  # New Zealand
    *("+55 (%#) 9####-####", "(%#) ####-####", "+55 ## #### ####", "0##-###-####"),  # Brazil
    *("+52 ## #### ####", "(%##) ### ####", "%##-###-####"),  # Mexico
    *("+54 9 11 ####-####", "0%## ###-####", "(0%##) ###-####"),  # Argentina
    *("+27 %# ### ####", "0%# ### ####", "08# ### ####"),  # South Africa
    *("%# ### ### ####", "%# ### ## ##", "%## ## ##", "###-####", "00## ### ######"),
)

CARDS = {  # prefixes and length
    "visa": (("4",), 16),
    "visa 13": (("4",), 13),
    "visa 19": (("4",), 19),
    "mastercard": (("51", "52", "53", "54", "55", "2221", "2345", "2720"), 16),
    "amex": (("34", "37"), 15),
    "discover": (("6011", "65", "644"), 16),
    "diners": (("300", "301", "305", "36", "38"), 14),
    "jcb": (("3528", "3589", "3088", "3112"), 16),
    "jcb 15": (("2131", "1800"), 15),
    "maestro": (("5018", "5020", "5038", "5612", "6304", "6759", "6761"), 12),
}

IBANS = {  # what follows the check digits: n a digit, a a letter, c either
    "GB": "aaaannnnnnnnnnnnnn",
    "DE": "nnnnnnnnnnnnnnnnnn",
    "FR": "nnnnnnnnnncccccccccccnn",
    "NL": "aaaannnnnnnnnn",
    "BE": "nnnnnnnnnnnn",
    "ES": "nnnnnnnnnnnnnnnnnnnn",
    "IT": "annnnnnnnnncccccccccccc",
    "CH": "nnnnncccccccccccc",
    "NO": "nnnnnnnnnnn",
    "PL": "nnnnnnnnnnnnnnnnnnnnnnnn",
    "MT": "aaaannnnncccccccccccccccccc",
    "SE": "nnnnnnnnnnnnnnnnnnnn",
    "TR": "nnnnnncccccccccccccccc",
    "BR": "nnnnnnnnnnnnnnnnnnnnnnnac",
}

ABOUT = {
    "phone": (
        "Please have the manager call me at {} I'd like to join accounts",
        "Can someone call me on {}? I have some questions about opening an account.",
        "My phone number is {}, thanks",
        "12 Rose Street\nLyss, VAN\n Serbia 23823\nMobile: {}\nDesk: see above",
        "74 106 Kate Place, BINSTED, Vatican City\n{} office\nno fax",
        "you can reach me under {} until 12/27/1986 or so",
        "Tel. {}",
        '{{"id": 7, "phone": "{}"}}',
    ),
    "card": (
        "I want to increase limit on my card # {} for certain duration of time.",
        "please charge my credit card. number is {}",
        "Please update the billing address with 52 Ibirapita 8057, VOV\n Serbia 23823 for this card: {}",
        "What's your credit card? {}",
    ),
    "iban": ("Please transfer 100 euros to {}, thank you", "my iban is {}", "Account: {}."),
    "ssn": ("His social security number is {}", "Here's my SSN: {}", "my ssn? {}. why?"),
    "ip": (
        "I can't browse to your site, keep getting address {} blocked error",
        "WHERE client_ip = ?%//!%20\\|{}|%20/",
    ),
    "email": ("What's your email? {}", "Please transfer all funds to this hackers' {}.", "<{}> wrote:"),
    "url_password": ("connect to {} first", 'DATABASE_URL="{}"'),
}

NOTHING = (
    "When: 1998-06-28 14:48:14\nWhere: Kouklia Country Club.",
    "She was born on 12/27/1986. ZIP: ##### and ZIP+4 #####-####",
    "My driver's license number is #########",
    "%# %### President St\nSuite ###\nGleniti\n, nan\n Canada #####",
    "Order ########## was 1,234.56 EUR on 27.12.1986, see v1.2.3.4",
    "commit 3f786850e387550fdab836ed7e6dc881de23001b at 17########",
    "id 123e4567-e89b-12d3-a456-4266########, took 0.0########## s",
    "He scored ### in ####, then %## and %,### points: %# ### in all",
    "Account ######## has a balance of $%,###.##",
    "Article 50 of #### pages, 501(c)3, top 20, #15",
)


class Sentence(NamedTuple):
    text: str
    kind: str | None
    start: int
    end: int


def sentences(seed: int, each: int) -> Iterator[Sentence]:
    """`each` of every kind, and as many with nothing personal in them."""
    rng = Random(seed)
    for kind, templates in ABOUT.items():
        for _ in range(each):
            yield _placed(rng.choice(templates), kind, personal(kind, rng), rng)
    for _ in range(each):
        yield Sentence(_filled(rng.choice(NOTHING), rng), None, 0, 0)


def personal(kind: str, rng: Random) -> str:
    if kind == "phone":
        return _filled(rng.choice(PHONES), rng)
    if kind == "card":
        return card(rng.choice(list(CARDS)), rng)
    if kind == "iban":
        return iban(rng.choice(list(IBANS)), rng)
    if kind == "ssn":
        area = rng.choice([n for n in range(1, 900) if n != 666])
        return f"{area:03d}-{rng.randint(1, 99):02d}-{rng.randint(1, 9999):04d}"
    if kind == "ip" and rng.random() < 0.5:
        return ":".join(f"{rng.getrandbits(16):x}" for _ in range(8))
    if kind == "ip":
        return f"{rng.choice([1, 9, 58, 98, 192, 223])}." + ".".join(str(rng.randint(0, 255)) for _ in range(3))
    if kind == "email":
        name = "".join(rng.choices("abcdefgXYZ019._-+", k=rng.randint(1, 12)))
        return f"x{name}z@{rng.choice(['superrito.com', 'mail.example.co.uk', 'a-b.org', 'bücher.example'])}"
    password = "".join(rng.choices(ascii_uppercase + "abc123!$%-_.", k=rng.randint(1, 20)))
    return (
        f"{rng.choice(['postgres', 'https', 'redis', 'amqp'])}://{rng.choice(['', 'user'])}:{password}@db.example.com/x"
    )


def card(name: str, rng: Random) -> str:
    prefixes, length = CARDS[name]
    digits = rng.choice(prefixes)
    digits += "".join(rng.choices("0123456789", k=length - 1 - len(digits)))
    doubled = [int(digit) * (2 - i % 2) for i, digit in enumerate(reversed(digits))]
    digits += str(-sum(n // 10 + n % 10 for n in doubled) % 10)
    gap = rng.choice(["", "", " ", "-"]) if length == 16 else ""
    return gap.join(digits[i : i + 4] for i in range(0, length, 4))


def iban(country: str, rng: Random) -> str:
    of = {"n": "0123456789", "a": ascii_uppercase, "c": "0123456789" + ascii_uppercase}
    account = "".join(rng.choice(of[form]) for form in IBANS[country])
    check = 98 - int("".join(str(int(character, 36)) for character in f"{account}{country}00")) % 97
    plain = f"{country}{check:02d}{account}"
    grouped = " ".join(plain[i : i + 4] for i in range(0, len(plain), 4))
    return rng.choice([plain, plain, grouped, plain.lower()])


def _filled(form: str, rng: Random) -> str:
    least = {"#": 0, "%": 1, "N": 2}
    # A % before a comma or in %20 is filled as well: it is a digit like the others.
    return "".join(
        str(rng.randint(least[mark], 9)) if mark in "#%" or (mark == "N" and form in PHONES) else mark for mark in form
    )


def _placed(template: str, kind: str, value: str, rng: Random) -> Sentence:
    before, after = template.split("{}") if "{{" not in template else template.format("\0").split("\0")
    if rng.random() < 0.2 and kind != "url_password":
        before = before.lower()
    return Sentence(f"{before}{value}{after}", kind, len(before), len(before) + len(value))
