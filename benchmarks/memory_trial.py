"""One trial with a folder of notes, in a separate process so that its memory can be measured.

`python -m benchmarks.memory_trial KIND FOLDER` prints one JSON object. Kinds: `ours`, `ours_kept`,
`ours_traced`, `bm25s`, `parsers`.
"""

import gc
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from foveate.memory.memory import Memory

_Result = TypeVar("_Result")
_SEED = 20261115
_TIMES = 11
_CHANGES = 5
_SHORT_WORDS, _LONG_WORDS = 8, 500
_LIMIT_TOKENS = 2000
# A file read sooner after a change may not be complete.
_SETTLED_SECONDS = 0.1
_HEADING = re.compile(r"^(?=(?:\*+|#+) )", re.MULTILINE)


def main() -> None:
    """Run the trial that the arguments name."""
    kind, folder = sys.argv[1:]
    trials: Mapping[str, Callable[[Path], Mapping[str, object]]] = {
        "ours": measure_memory,
        "ours_kept": measure_cached_vectors,
        "ours_traced": measure_traced_bytes,
        "bm25s": bm25s_index,
        "parsers": parsers,
    }
    print(json.dumps(trials[kind](Path(folder))))


def measure_memory(folder: Path) -> dict[str, object]:
    """Measure seconds and bytes of the product: load, render, change a file, find the changes."""
    figures: dict[str, object] = {}
    opened_paths = _watch_opening(folder)
    chance = random.Random(_SEED)
    figures["start_seconds"], _ = _time_call(_start)
    before = _resident_bytes()
    figures["load_seconds"], memory = _time_call(lambda: Memory.load(folder))
    figures["nodes"], figures["problems"] = len(memory.nodes), len(memory.problems)
    figures["opened_by_load"] = len(opened_paths)
    figures["resident_load_bytes"] = _resident_bytes() - before
    texts = [f"{node.title} {node.content}" for node in chance.sample(memory.nodes, 60)]

    def render(query: str | None = None, focus: str | None = None) -> str:
        return memory.render(query=query, focus=focus, limit_tokens=_LIMIT_TOKENS).text

    figures["first_render_seconds"], _ = _time_call(
        lambda: render(" ".join(texts.pop().split()[:_SHORT_WORDS]))
    )
    figures["resident_bytes"] = _resident_bytes() - before

    def render_short_query() -> str:
        return render(" ".join(chance.choice(texts).split()[:_SHORT_WORDS]))

    def render_long_query() -> str:
        return render(". ".join(" ".join(text.split()[:25]) for text in chance.sample(texts, 20)))

    def render_focus() -> str:
        return render(focus=chance.choice(memory.nodes).id)

    def render_query_and_focus() -> str:
        return render(chance.choice(texts)[:60], focus=chance.choice(memory.nodes).id)

    for name, call in {
        "query": render_short_query,
        "long_query": render_long_query,
        "focus": render_focus,
        "both": render_query_and_focus,
        "neither": render,
    }.items():
        times = [_time_call(call)[0] for _ in range(_TIMES)]
        figures[f"render_{name}_first_seconds"], figures[f"render_{name}_seconds"] = (
            times[0],
            statistics.median(times[1:]),
        )
        figures[f"render_{name}_most_seconds"] = max(times[1:])
    figures["refresh_unchanged_seconds"] = statistics.median(
        _time_call(memory.refresh)[0] for _ in range(_CHANGES)
    )
    figures |= _changes(memory, folder, opened_paths, chance)
    figures["resident_end_bytes"] = _resident_bytes() - before
    figures["resident_most_bytes"] = _max_resident_bytes() - before
    return figures


def _changes(memory: Memory, folder: Path, opened_paths: list[str], chance: random.Random) -> dict[str, object]:
    """Change a file, refresh and render; several times, each time another file."""
    refresh_times, render_times, read_again_counts, were_found = [], [], [], []
    for number, path in enumerate(chance.sample(sorted(folder.rglob("*.[om]*")), _CHANGES)):
        heading_prefix = "*" if path.suffix == ".org" else "#"
        secret = f"zyxomma{number} quandrel{number}"
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{heading_prefix} A thought about {secret}\n\nThe {secret} was seen in the garden.\n")
        opened_paths.clear()
        seconds, changes = _time_call(memory.refresh)
        refresh_times.append(seconds)
        seconds, view = _time_call(partial(memory.render, query=secret, limit_tokens=_LIMIT_TOKENS))
        render_times.append(seconds)
        were_found.append(f"The {secret} was seen" in view.text)
        others = {name for name in opened_paths if Path(name).resolve() != path.resolve()}
        # A file that is read while it is being written is checked again later, which is not measured.
        time.sleep(_SETTLED_SECONDS)
        memory.refresh()
        read_again_counts.append(
            len(others) + len([name for name in changes.read if Path(name).resolve() != path.resolve()])
        )
    total_times = [
        refresh_time + render_time
        for refresh_time, render_time in zip(refresh_times, render_times, strict=True)
    ]
    return {
        "refresh_changed_seconds": statistics.median(refresh_times),
        "render_changed_seconds": statistics.median(render_times),
        "new_text_found_seconds": statistics.median(total_times),
        "new_text_found_most_seconds": max(total_times),
        "new_text_found": all(were_found),
        "others_read_again": sum(read_again_counts),
    }


def measure_cached_vectors(folder: Path) -> dict[str, object]:
    """Measure the first render in a process that finds all vectors in the cache."""
    _start()
    memory = Memory.load(folder)
    seconds, _ = _time_call(lambda: memory.render(query="a note about the garden", limit_tokens=_LIMIT_TOKENS))
    return {"first_render_kept_seconds": seconds}


def measure_traced_bytes(folder: Path) -> dict[str, object]:
    """Return the bytes that Python and numpy hold for a memory, which are fewer than those of the process."""
    _start()
    gc.collect()
    tracemalloc.start()
    memory = Memory.load(folder)
    gc.collect()
    loaded = tracemalloc.get_traced_memory()[0]
    memory.render(query="a note about the garden", limit_tokens=_LIMIT_TOKENS)
    gc.collect()
    size, peak = tracemalloc.get_traced_memory()
    return {
        "traced_load_bytes": loaded,
        "traced_bytes": size,
        "traced_most_bytes": peak,
        "nodes": len(memory.nodes),
    }


def bm25s_index(folder: Path) -> dict[str, object]:
    """Time bm25s on the same texts: read and split by headings, index, query; a change needs a new index."""
    import bm25s

    before = _resident_bytes()

    def read() -> list[str]:
        texts = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.[om]*"))]
        return [piece for text in texts for piece in _HEADING.split(text) if piece.strip()]

    def build_index() -> "bm25s.BM25":
        index = bm25s.BM25()
        index.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
        return index

    read_seconds, texts = _time_call(read)
    index_seconds, index = _time_call(build_index)
    chance = random.Random(_SEED)

    def query_index() -> object:
        query = " ".join(chance.choice(texts).split()[:_SHORT_WORDS])
        return index.retrieve(
            bm25s.tokenize(query, stopwords="en", show_progress=False), k=20, show_progress=False
        )

    times = [_time_call(query_index)[0] for _ in range(_TIMES + 1)]
    return {
        "texts": len(texts),
        "read_seconds": read_seconds,
        "index_seconds": index_seconds,
        "ask_seconds": statistics.median(times[1:]),
        "new_text_found_seconds": index_seconds + statistics.median(times[1:]),
        "resident_bytes": _resident_bytes() - before,
    }


def parsers(folder: Path) -> dict[str, object]:
    """Time orgparse on the Org files, and markdown-it on the others."""
    import markdown_it
    import orgparse

    before = _resident_bytes()
    markdown = markdown_it.MarkdownIt("commonmark")
    org_seconds, org = _time_call(lambda: [orgparse.load(path) for path in sorted(folder.rglob("*.org"))])
    markdown_seconds, _ = _time_call(
        lambda: [markdown.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.md"))]
    )
    return {
        "orgparse_seconds": org_seconds,
        "markdown_it_seconds": markdown_seconds,
        "load_seconds": org_seconds + markdown_seconds,
        "org_nodes": sum(len(list(file)) for file in org),
        "resident_bytes": _resident_bytes() - before,
    }


def _start() -> None:
    """Load what every memory needs at any size: libraries, embedder weights, tokenizer."""
    with tempfile.TemporaryDirectory() as other:
        (Path(other) / "one.md").write_text("# One\n\nA note.\n", encoding="utf-8")
        Memory.load(other).render(query="a note")


def _time_call(call: Callable[[], _Result]) -> tuple[float, _Result]:
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def _resident_bytes() -> int:
    """Return the resident bytes of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _max_resident_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _watch_opening(folder: Path) -> list[str]:
    """Return a list that collects the path of every file in `folder` that this process opens from now on."""
    opened: list[str] = []
    inside = str(folder.resolve())

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            path = arguments[0] if isinstance(arguments[0], str) else arguments[0].decode("utf-8", "replace")
            if path.startswith(inside) and Path(path).is_file():
                opened.append(path)

    sys.addaudithook(hook)
    return opened


if __name__ == "__main__":
    main()
