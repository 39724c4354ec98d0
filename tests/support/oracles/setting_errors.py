"""Settings that cannot be, and the errors that say so."""

from collections.abc import Callable
from typing import ParamSpec

import pytest

from foveate.errors import BadSetting

Given = ParamSpec("Given")


def refused(read: Callable[Given, object], *args: Given.args, **kwargs: Given.kwargs) -> BadSetting:
    """The error with which `read` refuses what it is given."""
    with pytest.raises(BadSetting) as caught:
        read(*args, **kwargs)
    return caught.value
