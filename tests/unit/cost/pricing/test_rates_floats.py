"""No module of prices uses floats for money."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4] / "src" / "foveate" / "cost"
MODULES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("pricing/*.py"), ROOT / "money.py"))
# Timestamps are floats.
TIME_PARAMETERS = {"at", "second", "seconds", "day"}


def find_floats(source: str) -> list[str]:
    """Literals, calls, divisions and annotations of floats in a module."""
    findings = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=float()):
                findings.append(f"line {node.lineno}: {ast.unparse(node)}")
            case ast.Call(func=ast.Name(id="float" | "round")):
                findings.append(f"line {node.lineno}: {ast.unparse(node)}")
            case ast.BinOp(op=ast.Div()):
                findings.append(f"line {node.lineno}: {ast.unparse(node)}")
            case ast.arg(annotation=ast.Name(id="float")) if node.arg not in TIME_PARAMETERS:
                findings.append(f"line {node.lineno}: {node.arg} is a float")
            case ast.AnnAssign(annotation=ast.Name(id="float")):
                findings.append(f"line {node.lineno}: {ast.unparse(node)}")
    return findings


@pytest.mark.parametrize("name", MODULES)
def test_no_module_of_prices_uses_floats(name: str) -> None:
    assert find_floats((ROOT / name).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    ["x = 0.1", "x = float(y)", "x = a / b", "x = round(a)", "def f(dollars: float): ...", "x: float = a"],
)
def test_floats_are_detected(source: str) -> None:
    assert find_floats(source)
