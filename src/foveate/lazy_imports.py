"""Names of a package that are imported when they are first used, so that importing the package stays fast."""

import sys

TYPE_CHECKING = False  # as in the package: importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def import_on_first_use(
    package: str, names_by_module: "Mapping[str, tuple[str, ...]]"
) -> "Callable[[str], Any]":
    """Return a `__getattr__` for a package, which imports its names from the modules that define them."""
    modules_by_name = {name: module for module, names in names_by_module.items() for name in names}

    def import_name(name: str) -> "Any":
        if name not in modules_by_name:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(modules_by_name[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return import_name
