"""Helper for errors of invalid settings."""

from collections.abc import Callable
from typing import ParamSpec

import pytest

from foveate.errors import BadSetting

Given = ParamSpec("Given")


def read_error(read: Callable[Given, object], *args: Given.args, **kwargs: Given.kwargs) -> BadSetting:
    """Return the error with which `read` rejects its input."""
    with pytest.raises(BadSetting) as caught:
        read(*args, **kwargs)
    return caught.value
