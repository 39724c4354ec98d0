"""tiktoken, which needs its ranks from somewhere."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path


def o200k() -> Callable[[str], list[int]]:
    """The encoding of gpt-4o as tiktoken has it, from the ranks that litellm brings along."""
    found = importlib.util.find_spec("litellm")
    assert found is not None
    assert found.origin is not None
    ranks = Path(found.origin).parent / "litellm_core_utils" / "tokenizers"
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(ranks))
    import tiktoken

    return tiktoken.get_encoding("o200k_base").encode_ordinary
