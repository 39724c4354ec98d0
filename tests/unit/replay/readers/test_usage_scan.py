"""Lines of logs that contain usage."""

from hypothesis import given
from hypothesis import strategies as st

from foveate.replay.readers import usage_scan


@given(st.lists(st.sampled_from([b"a", b"m", b"xx", b"\n", b'"u"', b"\xff"])))
def test_exactly_the_lines_with_a_marker_are_found(parts: list[bytes]) -> None:
    chunk = b"".join(parts)
    expected = [line for line in chunk.split(b"\n") if b"m" in line or b'"u"' in line]
    assert list(usage_scan._find_lines(chunk, (b"m", b'"u"'))) == expected
