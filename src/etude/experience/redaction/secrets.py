"""Text in; keys and tokens of providers, private keys, and what follows names like `password=` out."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from string import ascii_letters, digits

from etude.experience.redaction.matches import PLACEHOLDER, START, Match, View
from etude.experience.redaction.names import SecretNames

# How a provider's tokens look, and whose they are. All are made of runs of at least RUN letters, digits, _ and -.
_PROVIDERS = (
    ("sk-ant-", r"sk-ant-[\w-]{16,}", "Anthropic"),
    ("sk-or-", r"sk-or-[\w-]{16,}", "OpenRouter"),
    ("sk-", r"sk-(?=[A-Za-z_-]{0,200}[0-9])[\w-]{16,}", "OpenAI"),
    ("AKIA or ASIA", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])", "AWS"),
    ("AIza", r"AIza[\w-]{30,}", "Google"),
    ("GOCSPX-", r"GOCSPX-[\w-]{20,}", "Google OAuth"),
    ("ya29.", r"(?<=ya29\.)[\w-]{20,}", "Google OAuth"),
    ("gh_", r"(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,})", "GitHub"),
    ("gl-", r"gl(?:pat|dt|rt|ptt|cbt|oas|soat|ft|imt|agent)-[\w-]{16,}", "GitLab"),
    ("xox", r"(?:xox[a-z](?:\.xox[a-z])?-[\w-]{10,}|xapp-[\w-]{10,})", "Slack"),
    ("_live_", r"(?:[srp]k_(?:live|test)_[A-Za-z0-9]{10,}|whsec_[A-Za-z0-9]{16,})", "Stripe"),
    ("etude_", r"etude_[0-9a-f]{12}_[\w-]{20,}", "Etude"),
    ("hf_", r"hf_[A-Za-z0-9]{20,}|api_org_[A-Za-z0-9]{20,}", "Hugging Face"),
    ("npm_", r"npm_[A-Za-z0-9]{30,}", "npm"),
    ("pypi-", r"pypi-[\w-]{30,}", "PyPI"),
    ("SG.", r"(?<=SG\.)[\w-]{16,}", "SendGrid"),
    ("SK or AC", r"(?:SK|AC)[0-9a-f]{32}(?![A-Za-z0-9])", "Twilio"),
    ("do_v1_", r"do[opr]_v1_[a-f0-9]{32,}", "DigitalOcean"),
    ("sq0", r"(?:sq0[a-z]{3}-[\w-]{20,}|EAAA[\w-]{56,})", "Square"),
    ("key-", r"key-[0-9a-zA-Z]{32}(?![A-Za-z0-9])", "Mailgun"),
    ("-us", r"[0-9a-f]{32}-us[0-9]{1,2}(?![A-Za-z0-9])", "Mailchimp"),
    ("shp", r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}", "Shopify"),
    ("dapi", r"dapi[0-9a-f]{32}", "Databricks"),
    ("AGE-SECRET-KEY", r"AGE-SECRET-KEY-1[A-Z0-9]{40,}", "age"),
    ("hvs.", r"(?<=hv[sbr]\.)[\w-]{24,}", "HashiCorp Vault"),
    ("dp.", r"(?<=dp\.(?:pt|st|ct)\.)[\w-]{30,}", "Doppler"),
    ("EAA", r"EAA[A-Za-z0-9]{40,}", "Facebook"),
    ("pul-", r"pul-[0-9a-f]{40}", "Pulumi"),
    ("atlasv1.", r"(?<=\.atlasv1\.)[\w-]{60,}", "Terraform"),
    ("oy2", r"oy2[a-z0-9]{43}(?![A-Za-z0-9])", "NuGet"),
    ("AKCp", r"AKCp[A-Za-z0-9]{60,}", "Artifactory"),
    ("HRKU-", r"HRKU-[0-9a-f-]{36}", "Heroku"),
    ("ATATT", r"ATATT3[\w-]{20,}", "Atlassian"),
    ("EZAK", r"EZ[AT]K[A-Za-z0-9]{40,}", "EasyPost"),
    ("NRAK-", r"NRAK-[A-Z0-9]{20,}", "New Relic"),
    ("PMAK-", r"PMAK-[a-f0-9-]{24,}", "Postman"),
    ("FLWSECK", r"FLWSECK(?:_TEST)?-[\w-]{12,}", "Flutterwave"),
    ("bot token", r"(?<=:)AA[\w-]{33}(?![\w-])", "Telegram"),
    (
        "such a prefix",
        r"(?:lin_api|ntn|gsk|pplx|r8|xai|lsv2_(?:pt|sk)|fo1|fm[12]|tvly|pcsk|sbp|nfp|pscale_(?:tkn|pw|oauth)|glc|glsa|sntry[su]|"
        r"figd|rubygems|dckr_pat|xkeysib|HRKU|secret|shippo_live|fw|jina|nvapi|csk|tskey-(?:auth|api)|rpa|sk)"
        r"[_-](?=[A-Za-z]{0,200}[0-9])[A-Za-z0-9]{20,}[\w-]*",
        "a model, build or hosting service",
    ),
    ("eyJ", r"eyJ[\w-]{8,}", "JSON web tokens"),
)
_EDGE = r"(?:(?=[A-Za-z0-9])|(?<=\.))(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
"""Where a token may begin. Between underscores it is everywhere: the first part rules that out at once."""
_PROVIDER = re.compile(_EDGE + "(?:" + "|".join(f"(?:{form})()" for _, form, _ in _PROVIDERS) + ")", re.ASCII)
"""The empty group says which one: a group around the whole would have every form tried to its end."""
_DOTTED = re.compile(r"(?:\.[\w-]{4,4096}){1,4}", re.ASCII)
_HEX = re.compile(r"[0-9a-f-]*+")
RUN = b"a" * 16
_AFTER_BEARER = re.compile(r"[A-Za-z0-9._~+/=-]{16,4096}")
_AFTER_BASIC = re.compile(r"[A-Za-z0-9+/]{8,4096}={0,2}")
_AFTER_SIGNATURE = re.compile(r"[A-Za-z0-9%/+=_-]{16,1024}")
_SIGNATURE = re.compile(r"(?:sig|signature|sharedaccesssignature|x-amz-signature)=[a-z0-9%/+_-]{0,40}\Z")
_WEBHOOK = re.compile(
    r"(?:hooks\.slack\.com/(?:services|workflows)/[\w/]{4,60}|discord(?:app)?\.com/api/webhooks/[0-9]{8,30}/|"
    r"webhook\.office\.com/[\w@./-]{0,80})\Z",
    re.I,
)
_AWS_SECRET = re.compile(r"(?<![A-Za-z0-9/+=])(?=[A-Za-z/+]{0,39}[0-9])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])")

_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_BODY = re.compile(r"[A-Za-z0-9+/=\s\\:,.-]*")

# What follows a name that may be secret: a colon, an equals sign, the end of a tag, a verb.
_NAMED = r"[\w-]{0,40}+[\\\"'`\]]{0,8}+(?:[ \t]{0,4}+(?:=>|:=|[:=>](?!=))|[ ]{1,4}+(?:is|was)[ ])"
_ASSIGNED = tuple(
    re.compile(form.encode() + _NAMED.encode())
    for form in (
        r"k(?:(?<=[\w-]k)ey|(?<=(?:api|ess|ret|ate|unt|ent|ion) k)ey|(?<=tok)en|(?<=cook)ie)",
        r"w(?:(?<=passw)(?:or)?[dt]|(?<=pw)d)",
        r"cre(?:(?<=secre)t|dential)",
        r"z(?<=authoriz)ation",
        r"ph(?<=passph)rase",
        r"ss(?<=[a-z_]pass)",
    )
)
_FLAG = re.compile(r"--([A-Za-z][\w-]{1,40})[ ]{1,4}(?=[^\s-])")
_LOGIN = re.compile(r"\bcurl\b[^\n\x00\x01]{0,300}? -u[ ]{0,2}[^\s:\x00\x01]{1,64}:([^\s\"'\x00\x01]{1,128})")
_PASSWORD_FOR = re.compile(rb"password for [\w .'@-]{1,40}? (?:is|was)[ ]")
_WORD = ascii_letters + digits + "_-"
_BEFORE_KEY = re.compile(
    r"\b(?:api|access|secret|private|account|auth|client|encryption|bearer|refresh|license)[ ]\Z", re.I
)
_OPENING = re.compile(r"[ \t]{0,4}(?:[bfrBFR]{0,2}(?P<quote>\\*[\"'`]))?")
_BARE = re.compile(r"[^\s\"'`&,;<>\\\x00\x01]{1,1024}")
_HEADER = re.compile(r"(?:(?!\\[rn])[^\r\n\"'\x00\x01]){1,4096}")
_ELEMENT = re.compile(r"[^<\x00\x01]{1,1024}(?=</)")
_CLOSING_MARKS = ").,]}!?:"
_NO_VALUE = re.compile(  # masked already, filled in later, or a word about it
    r"""(?:[*•:]+|[xX.#-]{3,}|(?:(?:bearer|basic|token)\s)?(?:\$\{[^}]*\}|\$[A-Z_]+|\{\{?[^}]*\}?\}|%\(\w+\)s|%[sdv]|<[^>]*>)
    |none|null|nil|true|false|undefined|str|string|int|integer|bool|boolean|any|bytes|optional|secretstr|object|required
    |your\S*|changeme|redacted|hidden|empty|text|const|let|var|type|number|void|self|this|must|should|is|are|was|the|an?
    |and|or|not|please|enter|to|for|of|at|in|with|that|reset|incorrect|invalid|wrong|expired|length|field|yes|no)\Z""",
    re.VERBOSE | re.IGNORECASE,
)
_CODE = re.compile(  # a collection, a variable, a call, a look-up, an attribute
    r"[\[({]|\$\(|\$\{?[A-Za-z_]\w*\}?\Z|[A-Za-z_][\w.]*[(\[]|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+\Z"
)
_MAX_CHARS, _MAX_KEY_CHARS = 4096, 16384


def find_tokens(view: View) -> Iterator[Match]:
    """Keys and tokens: each lies in a long run of letters, digits, _ and -, so nothing else is looked at."""
    text, runs = view.text, view.runs
    place = runs.find(RUN)
    while place >= 0:
        end = runs.find(b" ", place)
        end = len(runs) if end < 0 else end
        hexadecimal = _HEX.match(text, place)  # most are hashes and UUIDs
        lead = view.low[max(0, place - 10) : place]
        if (hexadecimal and hexadecimal.end() < end) or lead.endswith((b"bearer ", b"signature=")):
            for found in _in_run(view, place, end):
                yield found
                end = max(end, found.end)
        place = runs.find(RUN, end)
    if "-----BEGIN" in text:
        yield from _private_keys(text)


def _in_run(view: View, start: int, end: int) -> Iterator[Match]:
    text = view.text
    if (match := _PROVIDER.search(text, start, end)) and (found := _of_provider(text, match)):
        yield found
        if found.why.endswith(" AWS") and (secret := _AWS_SECRET.search(text, found.end, found.end + 200)):
            yield _secret(text, secret.start(), secret.end(), "it is next to a key id of AWS")
        return
    lead = view.low[max(0, start - 9) : start]
    if lead.endswith((b"bearer ", b"bearer%20", b"basic ")):
        basic = lead.endswith(b"basic ")
        match = (_AFTER_BASIC if basic else _AFTER_BEARER).match(text, start)
        if match and (_is_basic(match[0]) if basic else any(map(str.isdigit, match[0]))):
            yield _secret(text, start, match.end(), "it follows Basic or Bearer")
    elif lead.endswith(b"/") and _WEBHOOK.search(view.before(start, 100)):
        yield _secret(text, start, end, "it is the secret part of a webhook's address")
    elif lead.endswith(b"=") or b"%" in lead:
        before = view.before(start, 60)
        if named := _SIGNATURE.search(before):
            start -= len(before) - before.index("=", named.start()) - 1
            if match := _AFTER_SIGNATURE.match(text, start):
                yield _secret(text, start, match.end(), "it signs a URL")


def _of_provider(text: str, match: re.Match[str]) -> Match | None:
    begins, _, owner = _PROVIDERS[(match.lastindex or 1) - 1]
    dotted = _DOTTED.match(text, match.end())
    if dotted is None and begins == "eyJ":  # any JSON in base64 begins so
        return None
    end = dotted.end() if dotted and begins in ("eyJ", "SG.", "ya29.") else match.end()
    return _secret(text, match.start(), end, f"{begins} begins the keys of {owner}")


def _is_basic(token: str) -> bool:
    try:
        return b":" in b64decode(token + "=" * (-len(token) % 4))
    except ValueError:
        return False


def _private_keys(text: str) -> Iterator[Match]:
    done = 0
    for match in _PEM.finditer(text):
        if match.start() < done:
            continue
        end = text.find("-----END", match.end(), match.end() + _MAX_KEY_CHARS)
        stop = text.find("-----", end + 8, end + 80) if end >= 0 else -1
        done = stop + 5
        if stop < 0 or START in text[match.start() : done]:  # cut off: what still looks like a key goes
            body = _PEM_BODY.match(text, match.end(), match.end() + _MAX_KEY_CHARS)
            done = body.end() if body else match.end()
        yield _secret(text, match.start(), done, "it is a private key in PEM form")


def find_assigned(view: View, names: SecretNames, extra: re.Pattern[bytes] | None) -> Iterator[Match]:
    """What follows a name that says it is secret: in JSON, query strings, headers, shell, code and prose."""
    for form in _ASSIGNED if extra is None else (*_ASSIGNED, extra):
        done = 0
        for match in form.finditer(view.low):
            if match.start() >= done and (found := _assigned(view, names, match.start(), match.end())):
                done = found.end
                yield found
    if " -u" in view.text:
        for pair in _LOGIN.finditer(view.text):
            if found := _of_name("password", view.text, pair.start(1), pair.end(1)):
                yield found
    if b"password for " in view.low:
        for match in _PASSWORD_FOR.finditer(view.low):
            if found := _value(view, "password", match.end(), name="password", sign="is"):
                yield found
    for flag in _FLAG.finditer(view.text):
        kind = names.kind(flag[1])
        if kind and (found := _value(view, kind, flag.end(), name=flag[1].lower(), sign="")):
            yield found


def extra_names(extra: tuple[str, ...]) -> re.Pattern[bytes] | None:
    if not extra:
        return None
    words = "|".join(re.escape(name.lower()) for name in extra).encode("latin-1", "replace")
    return re.compile(b"(?:" + words + b")" + _NAMED.encode())


def _assigned(view: View, names: SecretNames, anchor: int, end: int) -> Match | None:
    text = view.text
    lead = text[max(0, anchor - 40) : anchor]
    start = anchor - len(lead) + len(lead.rstrip(_WORD))
    if text[max(0, start - 1) : start] == "\\" and text[start] in "nrt":  # an escaped line break
        start += 1
    name_end = anchor
    while name_end < end and text[name_end] in _WORD:
        name_end += 1
    name, sign = text[start:name_end].lower(), text[name_end:end].strip("\\\"'`] \t")
    if spaced := _BEFORE_KEY.search(text, max(0, start - 12), start):
        name = spaced[0].lower() + name
    kind = names.kind(name)
    if kind is None or PLACEHOLDER.match(text, max(0, start - 1)):
        return None
    quote = _OPENING.match(text, end)
    if quote and quote["quote"] and text[max(0, start - 1) : start] == quote["quote"] not in text[name_end:end]:
        return None  # "password: " as a whole
    if sign != ">":
        return _value(view, kind, end, name=name, sign=sign)
    value = _ELEMENT.match(text, end) if text[max(0, start - 1) : start] == "<" else None
    return value and _of_name(kind, text, end, value.end())


def _value(view: View, kind: str, start: int, *, name: str, sign: str) -> Match | None:
    text = view.text
    spaced = text[start : start + 1] == " "
    opening = _OPENING.match(text, start)
    assert opening is not None  # it matches nothing as well
    start = opening.end()
    if quote := opening["quote"]:
        end = _closing(text, start, quote)
        if name.endswith("token") and "logprob" in view.after(end, 40):  # one token of a language model's answer
            return None
        return _of_name(kind, text, start, end)
    if sign == ":" and name.endswith(("authorization", "cookie")):
        header = _HEADER.match(text, start)
        return header and _of_name(kind, text, start, header.end())
    bare = _BARE.match(text, start)
    value = bare[0].rstrip(_CLOSING_MARKS) if bare else ""
    if (
        not value
        or _CODE.match(value)
        or not _is_meant(kind, value, name, sign, spaced, text[start + len(value) :][:1])
    ):
        return None
    return _of_name(kind, text, start, start + len(value))


def _is_meant(kind: str, value: str, name: str, sign: str, spaced: bool, after: str) -> bool:
    """Whether a value without quotes is one, or the next word of a sentence, or a variable."""
    digit = any(map(str.isdigit, value))
    if value.lower() in name:  # password=password hands a variable on
        return False
    if value.isidentifier() and not digit and (value.isupper() or (kind == "secret" and "_" in value)):
        return False
    if len(value) >= 16 or digit or (kind == "password" and not value.isalpha()):
        return True
    if sign == ":":
        return kind == "password" or (len(value) >= 6 and after in ("", "\n", "\r"))
    return sign in ("=", "") and not (spaced and sign == "=")


def _closing(text: str, start: int, quote: str) -> int:
    """Where the quoted value ends; at the line's end where its quote is not closed."""
    stop = min(len(text), start + _MAX_CHARS)
    end = text.find(quote, start, stop)
    while end > 0 and len(quote) == 1 and text[end - 1] == "\\" and (end - len(text[:end].rstrip("\\"))) % 2:
        end = text.find(quote, end + 1, stop)
    if end >= 0 and START not in text[start:end]:
        return end
    breaks = [at for mark in "\n\x00" if (at := text.find(mark, start, stop)) >= 0]
    return min(breaks, default=stop)


def _of_name(kind: str, text: str, start: int, end: int) -> Match | None:
    value = text[start:end].rstrip()
    if _NO_VALUE.match(value) or not any(map(str.isprintable, PLACEHOLDER.sub("", value).strip())):
        return None
    return Match(kind, start, start + len(value), value, f"its name says that it is a {kind}")


def _secret(text: str, start: int, end: int, why: str) -> Match:
    return Match("secret", start, end, text[start:end], why)
