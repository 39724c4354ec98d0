"""Lists the benchmarks, or runs one."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import BadData, as_json, as_text, discover, table, undeclared_figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    benchmarks = discover()
    parser = argparse.ArgumentParser(prog="./bench", description=__doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="which to run; none lists them")
    parser.add_argument("--data", type=Path, metavar="PATH", help="other data of the same format")
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--quick", action="store_true", help="a short run, where a benchmark has one")
    parser.add_argument("--only", metavar="NAMES", help="parts of it, with commas between, where it has parts")
    parser.add_argument("--seeds", metavar="A-B", help="which generated cases, where a benchmark generates any")
    options = parser.parse_args(arguments)
    names = ("quick", "only", "seeds")
    benchmark_options = {name: value for name in names if (value := getattr(options, name))}

    if options.name is None:
        if options.data or options.json or benchmark_options:
            parser.error("--data, --json, --quick, --only and --seeds need the NAME of a benchmark")
        print(table([{"benchmark": b.name, "measures": b.measures} for b in benchmarks.values()]))
        return 0
    if options.name not in benchmarks:
        parser.error(f"no benchmark {options.name!r}; there are: {', '.join(benchmarks)}")
    if options.data and not options.data.exists():
        parser.error(f"--data: there is nothing at {options.data}")

    for name in benchmark_options:
        if name not in benchmarks[options.name].options:
            parser.error(f"{options.name} has no --{name}")

    # Otherwise litellm waits for a price list from the network, which would distort the times.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        report = benchmarks[options.name].run(options.data, **benchmark_options)
    except BadData as error:
        print(f"./bench {options.name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print((as_json if options.json else as_text)(options.name, report))
    if undeclared := undeclared_figures(benchmarks[options.name], report):
        print(
            f"./bench {options.name}: add these figures to FIGURES of the benchmark: {', '.join(undeclared)}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
