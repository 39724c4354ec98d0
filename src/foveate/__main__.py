"""`foveate`, and `python -m foveate`: reads the usual vocabulary while the command line itself is loading."""

import sys
from contextlib import suppress
from threading import Thread


def main() -> None:
    """Run the command line; Ctrl-C ends it with the code that shells expect."""
    try:
        _main()
    except KeyboardInterrupt:
        sys.exit(130)


def _main() -> None:
    if sys.argv[1:2] == ["count"]:
        Thread(target=_read_ahead, daemon=True).start()
    from foveate.cli import main as run

    run()


def _read_ahead() -> None:
    with suppress(ImportError):  # whoever then counts falls back to an estimate
        from foveate.tokens.vocabulary import bundled

        bundled("o200k_base")


if __name__ == "__main__":
    main()
