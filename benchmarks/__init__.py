"""Benchmarks of Foveate and of comparable libraries.

A benchmark is a module in this package with a function `run(data: Path | None) -> Report` and a docstring whose
first line describes the measurement. `count_accuracy.py` is called `count-accuracy`.
"""
