"""Batches of files for several processes."""

from foveate.replay.worker_pool import make_batches


def test_the_longest_sessions_come_first_and_short_ones_share_batches() -> None:
    long_bytes, longest_bytes, short_bytes = 300_000, 9_000_000, 100_000

    assert make_batches([short_bytes, long_bytes, short_bytes, longest_bytes, short_bytes, short_bytes]) == [
        (3,),
        (1,),
        (0, 2, 4),
        (5,),
    ]
    assert make_batches([]) == []


def test_every_session_is_in_one_batch_however_small_they_are() -> None:
    batches = make_batches([0] * 100)

    assert sorted(number for batch in batches for number in batch) == list(range(100))
    assert max(map(len, batches)) <= 32
