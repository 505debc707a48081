"""Searches find what is known to be best on probes, and go on where they were interrupted."""

import sys
from pathlib import Path

import msgspec
import pytest
from tests.builders.probe_jobs import probe_job

from esper.leyline.config import Job
from esper.leyline.errors import InterruptedRunError, UsageError
from esper.leyline.schedules import ThresholdRule
from esper.simic.evaluation.arm_run import run_arm
from esper.simic.evaluation.arms import Arm, ArmKind, parse_arms
from esper.simic.evaluation.compare import compare
from esper.simic.evaluation.search import Search, Searcher, _schedule_from
from esper.simic.training.assembly.machine import one_thread_per_worker
from esper.simic.training.assembly.worker_setup import load_data
from esper.tolaria.stopping import StopFlag

NUM_ENVS = 8
"""Of each trial."""
NUM_HELD_OUT = 64
pytest.importorskip("optuna")


def searcher_of(job: Job, directory: Path, num_trials: int) -> Searcher:
    stop = StopFlag()
    return Searcher(
        job=job,
        directory=directory,
        num_episodes=num_trials * job.training.n_envs,
        stop=stop,
        dataset=load_data(job, stop),
    )


def earned(job: Job, arm: Arm, seed: int = 1000) -> float:
    """Return the mean task return on envs that no search has seen."""
    training = msgspec.structs.replace(job.training, n_envs=NUM_HELD_OUT)
    job = msgspec.structs.replace(job, training=training)
    run = run_arm(job, arm, stratum=0, seed=seed, stop=StopFlag())
    return sum(env.task_return for env in run.envs) / len(run.envs)


def arm_named(text: str) -> Arm:
    return parse_arms([text, "wait"])[0]


def test_rule_that_looks_beats_every_schedule_on_the_lottery(tmp_path: Path) -> None:
    job = probe_job("lottery", tmp_path, n_envs=NUM_ENVS)
    searcher = searcher_of(job, tmp_path, num_trials=50)

    with one_thread_per_worker():
        schedule, rule = (
            earned(job, searcher.resolve(arm_named(text)))
            for text in ("schedule:search", "rule:search")
        )

    # The best schedule earns 0.4: each env ends with 0.7 or 0.1. Two tries would earn 0.6.
    assert schedule <= 0.4 + 3 * 0.3 / NUM_HELD_OUT**0.5
    assert rule > schedule


def test_oracle_knows_the_context_that_a_schedule_does_not(tmp_path: Path) -> None:
    job = probe_job("context", tmp_path, n_envs=NUM_ENVS)
    searcher = searcher_of(job, tmp_path, num_trials=60)

    with one_thread_per_worker():
        oracle = searcher.resolve(arm_named("oracle"))
        schedule = searcher.resolve(arm_named("schedule:search"))
        returns = earned(job, oracle), earned(job, schedule)

    assert set(oracle.by_context) == {"kind-0", "kind-1"}
    assert returns[0] == pytest.approx(2.1)
    # Planting pays 2.1 or 0.3, and not planting 1.2.
    assert returns[1] <= 1.2 + 3 * 0.9 / NUM_HELD_OUT**0.5


def test_interrupted_search_goes_on_with_its_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = probe_job("context", tmp_path, n_envs=2)
    search = Search(ArmKind.SCHEDULE)
    whole = searcher_of(job, tmp_path / "whole", num_trials=12).find(search)
    broken = searcher_of(job, tmp_path / "broken", num_trials=12)
    calls: list[int] = []
    run = Searcher._task_return

    def counted(self: Searcher, *arguments: object) -> float:
        calls.append(1)
        if len(calls) == 6:
            raise InterruptedRunError("enough")
        return run(self, *arguments)

    monkeypatch.setattr(Searcher, "_task_return", counted)

    with pytest.raises(InterruptedRunError):
        broken.find(search)
    assert broken.find(search) == whole

    # Waiting under each of eight seeds as well. The sixth was tried twice, the others once; equal
    # parameters are not tried again.
    assert len(calls) <= 12 + 8 + 1


def test_search_without_optuna_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)

    with pytest.raises(UsageError, match=r"pip install 'esper-grow\[search\]'"):
        searcher_of(probe_job("context", tmp_path), tmp_path, 12).find(Search(ArmKind.RULE))


def test_oracle_of_a_task_without_contexts_is_refused(tmp_path: Path) -> None:
    job = probe_job("lottery", tmp_path)

    with pytest.raises(UsageError, match="has no contexts; use schedule:search"):
        searcher_of(job, tmp_path, 12).resolve(arm_named("oracle"))


def test_found_rule_is_made_of_what_the_task_offers(tmp_path: Path) -> None:
    job = probe_job("rent", tmp_path, n_envs=2)

    rule = searcher_of(job, tmp_path, num_trials=10).find(Search(ArmKind.RULE))

    assert isinstance(rule, ThresholdRule)
    assert set(rule.slots) <= set(job.training.slots)
    assert len(list(tmp_path.glob("search-rule-*.json"))) == 1


def test_what_a_comparison_finds_can_be_played_elsewhere(tmp_path: Path) -> None:
    job, kept = probe_job("lottery", tmp_path, n_envs=2), tmp_path / "found"
    arms = parse_arms(["schedule:search", "rule:search"])
    found = compare(
        job, arms, seeds=[1000, 1001], directory=tmp_path, search_episodes=24, keep_found=kept
    )
    files = parse_arms([f"schedule:{kept / 'schedule.json'}", f"rule:{kept / 'rule.json'}"])
    again = compare(job, files, seeds=[1000, 1001], directory=tmp_path / "again")

    # Searched side by side, in processes; what is found is what one search after another finds.
    alone = searcher_of(job, tmp_path / "alone", num_trials=12)
    assert files[0].schedule == alone.find(Search(ArmKind.SCHEDULE))
    assert files[1].rule == alone.find(Search(ArmKind.RULE))
    assert [arm.task_return for arm in again.arms] == [arm.task_return for arm in found.arms]


def test_a_schedule_can_run_its_seeds_in_part_until_a_step(tmp_path: Path) -> None:
    from optuna.trial import FixedTrial  # optional

    slots = {"r0c0": ("conv_light", 3), "r0c1": ("norm", 3), "r0c2": ("nothing", 0)}
    parameters: dict[str, object] = {"whole from": 9}
    for slot, (blueprint, step) in slots.items():
        parameters |= {f"{slot} blueprint": blueprint, f"{slot} style": "linear_add"}
        parameters |= {f"{slot} step": step, f"{slot} kept after": 40}

    schedule = _schedule_from(probe_job("growth", tmp_path), FixedTrial(parameters))

    found = [(row.step, row.op, row.slot, row.alpha_target) for row in schedule]
    assert found == [
        (3, "germinate", "r0c0", "half"),
        (4, "germinate", "r0c1", "half"),
        (9, "set_alpha_target", "r0c0", "full"),
        (10, "set_alpha_target", "r0c1", "full"),
    ]
