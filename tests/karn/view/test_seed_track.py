"""The lifecycle of each seed, and which seeds are forgotten."""

import pytest
from tests.karn.story import Wire

from esper.karn.view.seed_track import MAX_STAGES, SeedTrack
from esper.karn.view.thresholds import LIMITS
from esper.leyline import payloads
from esper.leyline.payloads import Payload
from esper.leyline.telemetry import Event, EventScope

WIRE = Wire()


def at(payload: Payload, step: int, *, env_id: int = 0, episode_id: int = 0) -> Event:
    scope = EventScope(round=0, step=step, env_id=env_id, episode_id=episode_id)
    return WIRE.event(payload, scope)


def germinated(seed_id: str = "s", slot_id: str = "r0c0") -> payloads.SeedGerminated:
    return payloads.SeedGerminated(
        slot_id=slot_id,
        seed_id=seed_id,
        blueprint="norm",
        num_params=10,
        style="linear_add",
        tempo_steps=5,
        alpha_target=1.0,
    )


def changed(to_stage: str, slot_id: str = "r0c0") -> payloads.SeedStageChanged:
    return payloads.SeedStageChanged(
        slot_id=slot_id,
        seed_id="s",
        from_stage="GERMINATED",
        to_stage=to_stage,
        alpha=0.0,
        steps_in_from_stage=1,
        accuracy_delta_pp=None,
    )


FOSSILIZED = payloads.SeedFossilized(
    slot_id="r0c0",
    seed_id="s",
    blueprint="norm",
    num_params=10,
    age_steps=9,
    contribution_pp=1.5,
    improvement_pp=None,
    blending_delta_pp=None,
)
PRUNED = payloads.SeedPruned(
    slot_id="r0c0",
    seed_id="s",
    blueprint="norm",
    reason="no gain",
    initiator="policy",
    age_steps=3,
    contribution_pp=-0.5,
    improvement_pp=None,
    blending_delta_pp=None,
)


def grown(*, step: int = 2, env_id: int = 0, episode_id: int = 0) -> SeedTrack:
    track = SeedTrack()
    event = at(germinated(), step, env_id=env_id, episode_id=episode_id)
    track.germinate(event, germinated(), 0)
    return track


def test_fossil_has_its_stages_and_contribution() -> None:
    track = grown(step=2)
    for version, (stage, step) in enumerate((("TRAINING", 3), ("BLENDING", 7)), start=1):
        track.change_stage(at(changed(stage), step), changed(stage), version)
    track.fossilize(at(FOSSILIZED, 9), FOSSILIZED, 3)

    view = track.view(0)
    assert view.stages == (("GERMINATED", 2), ("TRAINING", 3), ("BLENDING", 7))
    assert (view.fate, view.contribution_pp, view.last_step) == ("fossilized", 1.5, 9)
    assert track.marks.since(2) == [0]


def test_cooldown_of_the_slot_does_not_belong_to_a_pruned_seed() -> None:
    track = grown(step=2)
    track.prune(at(PRUNED, 4), PRUNED, 1)
    for version, stage in enumerate(("PRUNED", "EMBARGOED", "DORMANT"), start=2):
        track.change_stage(at(changed(stage), 4 + version), changed(stage), version)

    view = track.view(0)
    assert view.stages == (("GERMINATED", 2),)
    assert (view.fate, view.reason, view.last_step) == ("pruned", "policy: no gain", 4)


def test_end_of_an_episode_ends_only_growing_seeds_of_its_env() -> None:
    track = grown(env_id=0)
    track.germinate(at(germinated("t", "r0c1"), 3), germinated("t", "r0c1"), 1)
    track.germinate(at(germinated("u"), 3, env_id=1), germinated("u"), 2)
    track.fossilize(at(FOSSILIZED, 9), FOSSILIZED, 3)
    track.end_episode(at(FOSSILIZED, 10), 4)

    fates = {track.view(number).seed_id: track.view(number).fate for number in track.numbers()}
    assert fates == {"s": "fossilized", "t": "ended", "u": "growing"}


@pytest.mark.parametrize("event", [at(FOSSILIZED, 9, episode_id=1), at(FOSSILIZED, 9, env_id=1)])
def test_event_of_another_episode_or_env_changes_nothing(event: Event) -> None:
    track = grown()
    track.fossilize(event, FOSSILIZED, 1)
    assert track.view(0).fate == "growing"
    assert track.marks.since(0) == []


def test_stages_of_a_seed_are_bounded() -> None:
    track = grown()
    for step in range(2 * MAX_STAGES):
        stage = ("BLENDING", "HOLDING")[step % 2]
        track.change_stage(at(changed(stage), step), changed(stage), step)
    assert len(track.view(0).stages) == MAX_STAGES


def test_oldest_quarter_is_forgotten_beyond_the_limit() -> None:
    track = SeedTrack()
    num_seeds = LIMITS.max_seeds + 1
    for number in range(num_seeds):
        event = at(germinated(f"s{number}"), 1, env_id=number)
        track.germinate(event, germinated(f"s{number}"), number)

    num_forgotten = LIMITS.max_seeds // 4
    assert track.numbers() == list(range(num_forgotten, num_seeds))
    assert track.marks.since(num_seeds - 2) is None
    # An event about a forgotten seed is ignored.
    track.fossilize(at(FOSSILIZED, 9, env_id=0), FOSSILIZED, num_seeds)
    assert track.marks.since(num_seeds - 1) == []
