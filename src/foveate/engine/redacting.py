"""Keys left out of what is shown: by how they begin, and by what they are handed over as."""

import re

_KEYS = re.compile(
    r"(?i)\b(?:sk|fov|nvapi|gsk|xai)-[\w.-]{6,}|\bAIza[\w-]{10,}|(?<=bearer )[\w.~+/-]{8,}=*"
    r"|(?<=[?&]key=)[^&\s]+|(?<=api_key=)[^&\s]+|(?<=://)[^/@\s:]*:[^/@\s]+(?=@)"
)


def redact_keys(text: str) -> str:
    """A text with all that looks like a key left out."""
    return _KEYS.sub("[key]", text)
