"""Seeds of streams: stable, apart from each other, in range."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.streams import StreamPurpose, stream_seed

coordinates = st.none() | st.integers(0, 2**31)


def test_every_stream_of_a_small_run_has_a_seed_of_its_own() -> None:
    places = [None, 0, 1, 2, 11]
    names = list(product((0, 1, 42), StreamPurpose, places, places, places))

    seeds = {
        stream_seed(run, purpose=purpose, round=round_, env=env, step=step)
        for run, purpose, round_, env, step in names
    }

    assert len(seeds) == len(names)


@given(st.integers(0, 2**63), st.sampled_from(StreamPurpose), coordinates, coordinates, coordinates)
def test_seed_is_the_same_each_time_and_fits_in_63_bits(
    run_seed: int, purpose: StreamPurpose, round_: int | None, env: int | None, step: int | None
) -> None:
    first = stream_seed(run_seed, purpose=purpose, round=round_, env=env, step=step)

    assert first == stream_seed(run_seed, purpose=purpose, round=round_, env=env, step=step)
    assert 0 <= first < 2**63


def test_seed_is_the_head_of_the_published_digest() -> None:
    # sha256 of "42/action/3/1/None", its first eight bytes without the last bit.
    assert stream_seed(42, purpose=StreamPurpose.ACTION, round=3, env=1) == 0x76A678E0C1EE13AC >> 1
