"""What was said in a conversation, whatever format it is sent in."""

from dataclasses import dataclass
from enum import StrEnum

CUT_OFF_TEXT = "[cut off here by the user]"
"""What a model reads at the end of an answer of its own that nobody waited for."""


class ChatRole(StrEnum):
    """Who speaks."""

    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """What one of the two has said; `is_cut`: the user stopped it before its end."""

    role: ChatRole
    text: str
    is_cut: bool = False

    @property
    def sent_text(self) -> str:
        """Its words as they are sent."""
        return f"{self.text.rstrip()} {CUT_OFF_TEXT}" if self.is_cut else self.text


def user_turn(text: str) -> ChatTurn:
    """What the user says."""
    return ChatTurn(role=ChatRole.USER, text=text)


def assistant_turn(text: str, *, is_cut: bool = False) -> ChatTurn:
    """What the model says."""
    return ChatTurn(role=ChatRole.ASSISTANT, text=text, is_cut=is_cut)
