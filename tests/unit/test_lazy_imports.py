import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import foveate
from foveate import config, formats, tokens
from foveate.lazy_imports import import_on_first_use


class Package(ModuleType):
    """A package whose names are imported on first use; attributes of any name can be read."""

    def __getattr__(self, name: str) -> Any:
        return import_on_first_use(self.__name__, {"fractions": ("Fraction",), "json": ("missing",)})(name)


@pytest.fixture
def package() -> Iterator[Package]:
    package = sys.modules["a_package"] = Package("a_package")
    yield package
    del sys.modules["a_package"]


def test_a_name_is_imported_on_first_use_and_stays(package: Package) -> None:
    assert "Fraction" not in vars(package)

    from fractions import Fraction

    assert package.Fraction is Fraction
    assert vars(package)["Fraction"] is Fraction


@pytest.mark.parametrize("name", ["Decimal", "missing", "__path__"])
def test_other_names_are_missing_as_in_any_package(package: Package, name: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
        getattr(package, name)


@pytest.mark.parametrize("package", [foveate, config, formats, tokens])
def test_every_public_name_of_a_package_can_be_imported(package: ModuleType) -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match=f"^module '{package.__name__}' has no attribute 'nonsense'$"):
        _ = package.nonsense
