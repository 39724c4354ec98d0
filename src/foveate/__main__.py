"""Entry point of `foveate` and `python -m foveate`. Loads a vocabulary while the command line is imported."""

import sys
from itertools import pairwise

TYPE_CHECKING = False  # as in the package: importing typing would slow down the status line
if TYPE_CHECKING:
    from collections.abc import Callable

_COUNTING_COMMANDS = frozenset(("count", "assemble"))
# With one of these, no bundled vocabulary is needed.
_OPTIONS_WITHOUT_VOCABULARY = frozenset(("-h", "--help", "--tokenizer", "estimate", "--backend=estimate"))


def main() -> None:
    """Run the command line. Ctrl-C exits with the code that shells expect, lack of memory with a message."""
    try:
        _main()
    except KeyboardInterrupt:
        sys.exit(130)
    except MemoryError:
        sys.exit("foveate: not enough memory")  # exits with code 1, and needs no further imports


def _main() -> None:
    command, *options = sys.argv[1:] or [""]
    if command == "status" and "--line" in options:
        from foveate import status_line

        if status_line.run(options):
            return
    if command in _COUNTING_COMMANDS and _OPTIONS_WITHOUT_VOCABULARY.isdisjoint(options):
        from threading import Thread

        # Imported in the main thread: the other one would compete with the imports of the command line.
        from foveate.tokens.tokenizers import vocabularies

        Thread(
            target=_preload_vocabulary,
            args=(_guess_model(options), vocabularies.bundled_vocabulary),
            daemon=True,
        ).start()
    from foveate.cli import main as run

    run()


def _guess_model(options: list[str]) -> str:
    """Guess the model from the options. A wrong guess only wastes time."""
    for option, value in pairwise((*options, "")):
        if option in ("-m", "--model"):
            return value
        if option.startswith("--model="):
            return option.removeprefix("--model=")
    return ""


def _preload_vocabulary(model: str, bundled: "Callable[[str], object]") -> None:
    from contextlib import suppress

    with suppress(ImportError):  # counting then falls back to an estimate
        if model:
            from foveate.tokens.offline_counters import counter_for

            counter_for(model)
        else:
            bundled("o200k_base")


if __name__ == "__main__":
    main()
