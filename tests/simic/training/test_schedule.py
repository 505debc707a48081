"""The schedule of a run."""

from esper.simic.training.schedule import Schedule


def test_a_resumed_run_does_the_rounds_that_are_left() -> None:
    schedule = Schedule(num_rounds=4, num_steps=3, first_round=2)

    assert list(schedule.rounds()) == [2, 3]
    assert list(schedule.steps()) == [0, 1, 2]
    assert [schedule.progress_after(index) for index in schedule.rounds()] == [0.75, 1.0]
