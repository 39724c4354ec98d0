"""What is measured, beside those who do the same.

A benchmark is a module here with a docstring, whose first line says what it measures, and a
function `run(data: Path | None) -> Report`. `count_accuracy.py` is called `count-accuracy`.
"""
