"""`foveate`, and `python -m foveate`: reads the vocabulary while the command line itself is loading."""

import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from threading import Thread

_COUNTING_COMMANDS = frozenset(("count", "assemble"))
# With one of these, no vocabulary that comes with Foveate is needed.
_OPTIONS_WITHOUT_VOCABULARY = frozenset(("-h", "--help", "--tokenizer", "estimate", "--backend=estimate"))


def main() -> None:
    """Run the command line; Ctrl-C ends it with the code that shells expect, a lack of memory with a line."""
    try:
        _main()
    except KeyboardInterrupt:
        sys.exit(130)
    except MemoryError:
        sys.exit("foveate: not enough memory")  # with code 1, and nothing that would have to be loaded first


def _main() -> None:
    command, *options = sys.argv[1:] or [""]
    if command in _COUNTING_COMMANDS and _OPTIONS_WITHOUT_VOCABULARY.isdisjoint(options):
        # Imported here, since the thread would have to wait for its turns while the command line is loading.
        from foveate.tokens.tokenizers import vocabularies

        Thread(
            target=_preload_vocabulary,
            args=(_guess_model(options), vocabularies.bundled_vocabulary),
            daemon=True,
        ).start()
    from foveate.cli import main as run

    run()


def _guess_model(options: list[str]) -> str:
    """The model that is asked for, as far as a glance can tell; a wrong guess costs nothing but itself."""
    for option, value in pairwise((*options, "")):
        if option in ("-m", "--model"):
            return value
        if option.startswith("--model="):
            return option.removeprefix("--model=")
    return ""


def _preload_vocabulary(model: str, bundled: Callable[[str], object]) -> None:
    with suppress(ImportError):  # whoever then counts falls back to an estimate
        if model:
            from foveate.tokens.families import counter_for

            counter_for(model)
        else:
            bundled("o200k_base")


if __name__ == "__main__":
    main()
