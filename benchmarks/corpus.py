"""Text to count: prose, code, JSON and CJK, in pieces that never repeat."""

import gzip
import random
import sysconfig
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.harness import BadData
from benchmarks.recorded import DATA, PAIRS

_SEED = 20261115
_MIN_BYTES = 12_000_000
_PROSE = Path("knowledge") / "worg.tar.gz"

# Common words, so that pieces are as long as in real text; earlier ones are drawn more often.
_COMMON = """
的 是 在 了 我们 不 有 和 他 这 中国 一个 人 上 问题 时间 可以 因为 没有 工作 使用 系统 数据 模型 如果
但是 发展 开始 需要 方法 结果 文件 信息 其中 现在 北京 学习 研究 程序 语言 网络 服务 用户 管理 经济 社会
これ は です する 日本 の 東京 を ます ました から こと できる ない 時間 という データ テスト システム
그리고 우리는 있습니다 하는 것을 한국 사용 데이터 에서 합니다 프로그램 문제 시간 결과
"""
_STOPS = "，，，。。、；：？！\n"


class Source:
    """One kind of text, read once from start to end."""

    def __init__(self, kind: str, data: bytes) -> None:
        self.kind = kind
        self._data = data
        self._position = 0

    def take(self, size_bytes: int) -> str:
        """Return the next `size_bytes`, without characters that are cut at the ends.

        Raises:
            BadData: it is used up.
        """
        start = self._position
        if start + size_bytes > len(self._data):
            raise BadData(f"there is too little {self.kind} to measure with: {len(self._data)} bytes")
        self._position += size_bytes
        return self._data[start : self._position].decode("utf-8", "ignore")


def sources(data: Path | None) -> Mapping[str, Source]:
    """Return a fresh source of each kind.

    Raises:
        BadData: the recorded data is missing.
    """
    folder = data or DATA
    readers: dict[str, Callable[[], list[bytes]]] = {
        "prose": lambda: _prose(folder / _PROSE),
        "code": _code,
        "json": lambda: _json(folder / PAIRS, *sorted((folder / "sessions").rglob("*.jsonl.gz"))),
        "cjk": _cjk,
    }
    result: dict[str, Source] = {}
    for kind, read in readers.items():
        try:
            parts = read()
        except (OSError, EOFError, tarfile.TarError) as error:
            raise BadData(f"cannot read {kind} to measure with: {error}") from None
        random.Random(_SEED).shuffle(parts)
        result[kind] = Source(kind, b"\n".join(parts)[:_MIN_BYTES])
    return result


def cjk(characters: int, *, stops: bool = True) -> str:
    """Return a sequence of Chinese, Japanese and Korean words, the same at every call."""
    chance = random.Random(_SEED)
    common = _COMMON.split()
    words = chance.choices(common, [1 / rank for rank in range(2, len(common) + 2)], k=characters)
    if stops:
        words = [word + chance.choice(_STOPS) if chance.random() < 0.12 else word for word in words]
    return "".join(words)[:characters]


def _prose(path: Path) -> list[bytes]:
    with tarfile.open(path) as archive:
        members = [member for member in archive if member.isfile() and member.name.endswith(".org")]
        files = [archive.extractfile(member) for member in members]
        return [file.read() for file in files if file is not None]


def _code() -> list[bytes]:
    library = Path(sysconfig.get_paths()["stdlib"])
    return [path.read_bytes() for path in sorted(library.rglob("*.py")) if "site-packages" not in path.parts]


def _json(*paths: Path) -> list[bytes]:
    return [line for path in paths for line in gzip.decompress(path.read_bytes()).splitlines()]


def _cjk() -> list[bytes]:
    return [cjk(_MIN_BYTES // 3 + 1).encode()]
