"""tiktoken with local ranks."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path


def o200k() -> Callable[[str], list[int]]:
    """Return tiktoken's gpt-4o encoding, from the ranks that litellm bundles."""
    found = importlib.util.find_spec("litellm")
    assert found is not None
    assert found.origin is not None
    ranks = Path(found.origin).parent / "litellm_core_utils" / "tokenizers"
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(ranks))
    import tiktoken

    return tiktoken.get_encoding("o200k_base").encode_ordinary
