"""Large answers are sent in small parts."""

from hypothesis import given
from hypothesis import strategies as st

from esper.nissa.live.sending import PART_BYTES, in_parts


@given(st.integers(0, 5), st.integers(-1, 1))
def test_parts_are_the_whole_and_none_is_large(num_parts: int, odd_bytes: int) -> None:
    data = bytes(range(256)) * (num_parts * PART_BYTES // 256) + b"x" * max(0, odd_bytes)
    data = data[: len(data) + min(0, odd_bytes)]

    parts = list(in_parts(data))

    assert b"".join(parts) == data
    assert all(0 < len(part) <= PART_BYTES for part in parts)
    assert len(parts) == -(-len(data) // PART_BYTES)
