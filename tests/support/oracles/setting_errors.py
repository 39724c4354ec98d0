"""Helper for errors of invalid settings."""

from collections.abc import Callable
from typing import ParamSpec

import pytest

from foveate.errors import BadSetting

P = ParamSpec("P")


def read_error(read: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> BadSetting:
    """Return the error with which `read` rejects its input."""
    with pytest.raises(BadSetting) as caught:
        read(*args, **kwargs)
    return caught.value
