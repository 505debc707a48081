"""Heartbeats that another process can read."""

import os
import time

from esper.tolaria.lanes import Lane
from esper.tolaria.pulse import Pulse

WAIT_S = 20.0


def test_beats_and_envs_of_a_lane_are_seen_through_another_mapping() -> None:
    pulse, descriptor = Pulse.create(2)
    try:
        elsewhere = Pulse.open(descriptor, 2)
    finally:
        os.close(descriptor)
    assert [(beat.silent_s, beat.env_id) for beat in pulse.read()] == [(0.0, None)] * 3

    channel = elsewhere.channel(1)
    channel.beat(time.monotonic() - 5.0)
    channel.enter_env(7)

    idle, busy, feeder = pulse.read()
    assert (idle.silent_s, idle.env_id) == (0.0, None)
    assert busy.silent_s >= 5.0
    assert busy.env_id == 7
    assert (feeder.silent_s, feeder.env_id) == (0.0, None)
    elsewhere.feeder.beat(time.monotonic() - 9.0)
    assert pulse.read()[-1].silent_s >= 9.0
    for each in (channel, elsewhere.feeder):
        each.beat(None)
        each.enter_env(None)
    assert [(beat.silent_s, beat.env_id) for beat in pulse.read()] == [(0.0, None)] * 3


def test_a_lane_beats_while_it_works_and_not_while_it_is_idle() -> None:
    beats: list[float | None] = []
    lane = Lane("lane", on_beat=beats.append)
    lane.submit(lane.beat).result(WAIT_S)
    lane.close(WAIT_S)

    assert beats[-1] is None
    assert None not in beats[:-1]
    assert len(beats) == 3  # at the start of the call, in it, and when it was over
