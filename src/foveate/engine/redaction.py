"""Removal of keys from text that is logged or shown."""

import re

_KEYS = re.compile(
    r"(?i)\b(?:sk|fov|nvapi|gsk|xai)-[\w.-]{6,}|\bAIza[\w-]{10,}|(?<=bearer )[\w.~+/-]{8,}=*"
    r"|(?<=[?&]key=)[^&\s]+|(?<=api_key=)[^&\s]+|(?<=://)[^/@\s:]*:[^/@\s]+(?=@)"
)


def redact_keys(text: str) -> str:
    return _KEYS.sub("[key]", text)
