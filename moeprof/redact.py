"""Takes secrets out of command lines, settings and texts before they are written or shown.

By the name of what they are given to (``HF_TOKEN=``, ``--api-key``), by their own form (tokens of
known services, keys of AWS, bearer tokens), and in addresses (``user:password@``, signatures).
A number given to a token or key is kept: ``num_experts_per_token=8`` is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

REDACTED = "<redacted>"

_ALWAYS = frozenset(
    {"secret", "secrets", "password", "passwords", "passwd", "passphrase", "pwd", "credential"}
    | {"credentials", "apikey", "accesskey", "secretkey", "privatekey", "authtoken", "bearer"}
    | {"cookie", "accesstoken", "hftoken", "apitoken"}
)
_BEFORE_KEY = frozenset(
    {"api", "access", "secret", "private", "wandb", "ssh", "aws", "license", "auth", "account"}
    | {"encryption", "comet", "hf", "openai", "anthropic", "service", "storage", "signing"}
    | {"deploy", "admin", "master", "shared", "neptune", "clearml", "mlflow", "sas", "azure", "gcp"}
)
_OF_THE_MODEL = frozenset(
    {"per", "eos", "bos", "pad", "unk", "mask", "sep", "cls", "special", "stop", "image", "audio"}
    | {"video", "start", "end", "first", "last", "next", "prev", "each", "single", "prompt"}
)
"""Words before ``token`` that speak of tokens of a text."""
_NAME = r"-{0,2}[A-Za-z_][\w.\-]*"
_VALUE = r"(?:\"[^\"]*\"|'[^']*'|[^\s\"'&,;}\])]+)"
_GIVEN = re.compile(
    rf"(?P<name>(?<![\w.\-]){_NAME})(?P<sign>[\"']?\s?[=:]\s?|=)(?P<value>{_VALUE})"
)
_FLAG = re.compile(
    rf"(?P<name>(?<![\w\-])--?[A-Za-z][\w.\-]*)(?P<sign>\s+)(?P<value>(?!-){_VALUE})"
)
_USER = re.compile(
    r"(?P<scheme>\b(?:https?://(?=[^\s/@]+@)|[a-z][a-z0-9+.\-]*://(?=[^\s/@:]*:[^\s/@]+@)))"
    r"[^\s/@\"']+@",
    re.IGNORECASE,
)
_BEARER = re.compile(
    r"(?P<what>\bbearer|authorization:?\s+basic)\s+[A-Za-z0-9._~+/=\-]{8,}", re.IGNORECASE
)
_SIGNED = re.compile(
    r"(?P<name>[?&](?:sig|signature|token|access_token|key|X-Amz-(?:Signature|Credential|"
    r"Security-Token)|X-Goog-(?:Signature|Credential))=)[^&\s\"']+",
    re.IGNORECASE,
)
_FORMS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|(?:AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w\-]{16,}|xox[abprs]-[\w\-]{10,}|sk-[A-Za-z0-9_\-]{20,}"
    r"|AIza[\w\-]{30,}|ya29\.[\w\-]{20,}|eyJ[\w\-]{8,}\.[\w\-]{8,}\.[\w\-]*)"
)
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?i:true|false|none|null)")
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9_\-+=]{20,}")


def redacted_argv(argv: Sequence[str]) -> list[str]:
    """A command's words; what follows the flag of a secret is taken out too."""
    found: list[str] = []
    for word in argv:
        flag = found[-1] if found else ""
        is_value = flag.startswith("-") and "=" not in flag and not word.startswith("-")
        is_secret = is_value and _is_secret(flag, word)
        found.append(REDACTED if is_secret else redacted(word))
    return found


def redacted_setting(name: str, value: str) -> str:
    """The value of a setting or variable of this name."""
    return REDACTED if _is_secret(name, value) else redacted(value)


def redacted(text: str) -> str:
    """A text: a command as one line, flags, an address, what a process said."""
    text = _USER.sub(rf"\g<scheme>{REDACTED}@", text)
    text = _BEARER.sub(rf"\g<what> {REDACTED}", text)
    text = _SIGNED.sub(rf"\g<name>{REDACTED}", text)
    text = _FORMS.sub(REDACTED, text)
    for pattern in (_GIVEN, _FLAG):
        text = _without_values(pattern, text)
    return text


def redacted_record(value: object) -> object:
    """All texts of a record read from JSON; lists of texts are taken as the words of a command."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {
            name: redacted_setting(str(name), one) if isinstance(one, str) else redacted_record(one)
            for name, one in value.items()
        }
    if isinstance(value, list):
        is_argv = all(isinstance(one, str) for one in value)
        return redacted_argv(value) if is_argv else [redacted_record(one) for one in value]
    return value


def _without_values(pattern: re.Pattern[str], text: str) -> str:
    """The text without what is given to secrets; a value that is none is read for more."""
    parts, at = [], 0
    while found := pattern.search(text, at):
        value = found["value"]
        end = found.start("value")
        parts.append(text[at:end])
        if _is_secret(found["name"], value.strip("\"'")):
            quote = value[0] if value[0] in "\"'" else ""
            parts.append(f"{quote}{REDACTED}{quote}")
            end = found.end()
        at = end
    return "".join([*parts, text[at:]])


def _is_secret(name: str, value: str) -> bool:
    words = _words(name)
    if value == REDACTED or not words or not value or (words == ["pwd"] and value[0] in "/~"):
        return False
    if any(word in _ALWAYS for word in words):
        return True
    if _NUMBER.fullmatch(value):
        return False
    if any(second == "key" and first in _BEFORE_KEY for first, second in pairwise(words)):
        return True
    last = words[-1]
    if last in ("token", "tok"):
        return len(words) < 2 or words[-2] not in _OF_THE_MODEL
    return last == "auth" or (last == "key" and _RANDOM.fullmatch(value) is not None)


def _words(name: str) -> list[str]:
    """``--hfApiKey`` is hf, api, key."""
    parts = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return [word for word in re.split(r"[^A-Za-z0-9]+", parts.lower()) if word]
