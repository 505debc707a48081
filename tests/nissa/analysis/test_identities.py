"""Equations between counts: a run that obeys them, and each count that breaks one."""

from pathlib import Path

import msgspec
import pytest
from tests.nissa.fake_run import FakeRun

from esper.leyline.baselines import RunProfile
from esper.leyline.telemetry import EVENT_SPECS, CountClass, CountPer, EventType
from esper.nissa.analysis.identities import Check, check_profile
from esper.nissa.analysis.run_profile import ScanTask, scan_log


def profile_of(run: FakeRun, tmp_path: Path) -> RunProfile:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in run.lines()))
    return scan_log(ScanTask(path=str(path), with_keys=False)).profile


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> RunProfile:
    return profile_of(FakeRun(num_rounds=3, num_envs=2, num_steps=8), tmp_path_factory.mktemp("a"))


def with_count(profile: RunProfile, event_type: str, count: int) -> RunProfile:
    return msgspec.structs.replace(profile, counts={**profile.counts, event_type: count})


def check_of(profile: RunProfile, event_type: EventType) -> Check:
    [found] = [
        check for check in check_profile(profile) if check.name.startswith(f"{event_type} = ")
    ]
    return found


def broken(profile: RunProfile) -> list[str]:
    return [check.name for check in check_profile(profile) if not check.holds]


def test_run_that_follows_the_rules_breaks_no_equation(profile: RunProfile) -> None:
    checks = check_profile(profile)
    assert {check.count_class for check in checks} >= {CountClass.STRUCTURAL, CountClass.IDENTITY}
    assert broken(profile) == []


@pytest.mark.parametrize(
    ("run", "why"),
    [(FakeRun(failed_env=1), "env failures"), (FakeRun(skipped_round=0), "skipped updates")],
)
def test_failed_envs_and_skipped_updates_are_subtracted(
    run: FakeRun, why: str, tmp_path: Path
) -> None:
    found = profile_of(run, tmp_path)
    assert found.terms[why] == 1
    assert broken(found) == []
    forgotten = msgspec.structs.replace(found, terms={**found.terms, why: 0})
    assert broken(forgotten)


@pytest.mark.parametrize(
    ("per", "expected"),
    [
        (CountPer.RUN, 1),
        (CountPer.ROUND, 3),
        (CountPer.EPISODE, 3 * 2),
        (CountPer.ENV_STEP, 3 * 2 * 8),
        (CountPer.STEP_OR_UPDATE, 3 * (8 + 1)),
    ],
)
def test_closed_forms_follow_from_rounds_envs_and_steps(
    per: CountPer, expected: int, profile: RunProfile
) -> None:
    special = {EventType.LAST_ACTION, EventType.PPO_UPDATE_COMPLETED}
    kinds = [
        spec.event_type
        for spec in EVENT_SPECS.values()
        if spec.per is per and spec.event_type not in special
    ]
    forms = {check.name.partition(" = ")[0]: check for check in check_profile(profile)}
    found = [forms[kind].right for kind in kinds if kind in forms]
    assert found
    assert set(found) == {expected}


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("kind", [EventType.BATCH_STATS, EventType.EPISODE_OUTCOME])
def test_one_event_too_many_or_too_few_is_noticed(
    kind: EventType, change: int, profile: RunProfile
) -> None:
    assert not check_of(with_count(profile, kind, profile.counts[kind] + change), kind).holds


def test_per_step_events_may_be_switched_off_as_a_whole_but_not_in_part(
    profile: RunProfile,
) -> None:
    kind = EventType.EPOCH_COMPLETED
    assert check_of(with_count(profile, kind, 0), kind).holds
    assert not check_of(with_count(profile, kind, 1), kind).holds
    assert not check_of(with_count(profile, EventType.BATCH_STATS, 0), EventType.BATCH_STATS).holds


def test_step_that_ends_in_a_rollback_has_no_action(profile: RunProfile) -> None:
    kind = EventType.LAST_ACTION
    fewer = with_count(profile, kind, profile.counts[kind] - 1)
    assert not check_of(fewer, kind).holds
    num_rollbacks = profile.counts.get(EventType.GOVERNOR_ROLLBACK, 0) + 1
    assert check_of(with_count(fewer, EventType.GOVERNOR_ROLLBACK, num_rollbacks), kind).holds


@pytest.mark.parametrize("kind", [EventType.SEED_FOSSILIZED, EventType.SEED_PRUNED])
def test_fates_must_equal_their_stage_changes(kind: EventType, profile: RunProfile) -> None:
    found = with_count(profile, kind, profile.counts.get(kind, 0) + 1)
    assert any(name.startswith(f"{kind} = stage changes to") for name in broken(found))


def test_interrupted_run_has_no_closed_forms(profile: RunProfile) -> None:
    cut = msgspec.structs.replace(profile, status="interrupted", counts={})
    assert all(check.count_class is CountClass.IDENTITY for check in check_profile(cut))


def test_foreign_log_has_no_equations(profile: RunProfile) -> None:
    foreign = msgspec.structs.replace(profile, started=None, counts={"SEED_PRUNED": 3}, terms={})
    assert check_profile(foreign) == []
