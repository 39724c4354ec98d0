"""What was said in a conversation, whatever format it is sent in."""

from dataclasses import dataclass
from enum import StrEnum

CUT = "[cut off here by the user]"
"""What a model reads at the end of an answer of its own that nobody waited for."""


class Role(StrEnum):
    """Who speaks."""

    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one of the two has said; `is_cut`: the user stopped it before its end."""

    role: Role
    text: str
    is_cut: bool = False

    @property
    def sent(self) -> str:
        """Its words as they are sent."""
        return f"{self.text.rstrip()} {CUT}" if self.is_cut else self.text


def asked(text: str) -> Turn:
    """What the user says."""
    return Turn(role=Role.USER, text=text)


def answered(text: str, *, is_cut: bool = False) -> Turn:
    """What the model says."""
    return Turn(role=Role.ASSISTANT, text=text, is_cut=is_cut)
