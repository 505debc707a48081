"""Arms that do not look: what they do is decided before, elsewhere or by chance."""

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from tests.builders.probe_jobs import probe_job
from tests.builders.tiny_runs import tiny_job, tiny_run
from tests.builders.tiny_tasks import IMAGE_SIZES, TINY_FAMILY
from tests.simic.training.runs import last_checkpoint

from esper.leyline.comparison import ArmRun
from esper.leyline.config import Job
from esper.leyline.errors import UsageError
from esper.scripts.train import main as esper_train
from esper.simic.evaluation.arm_run import YOKE_OFFSET, run_arm
from esper.simic.evaluation.arms import Arm, ArmKind, parse_arms
from esper.simic.evaluation.flops import FlopMeter, TargetCost
from esper.simic.training.checkpoints.resuming import load_run
from esper.tolaria.stopping import StopFlag

QUICK = {"auto_forward": [1, 2, 3], "min_training_steps": 1, "min_prune_age_steps": 2}
STEPS = 12
PLAN = [{"step": 2, "op": "germinate", "slot": "r0c0", "blueprint": "conv_light"}]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tiny_run(
        tmp_path_factory.mktemp("trained"), n_episodes=1, max_epochs=STEPS, lifecycle=QUICK
    )
    return last_checkpoint(run.run_dir)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return tiny_job(tmp_path, lifecycle=QUICK, max_epochs=STEPS)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    return path


def run_of(job: Job, *texts: str, seed: int = 5, model: ArmRun | None = None) -> ArmRun:
    """Run the last of the arms."""
    arm = parse_arms([*texts, "periodic"])[len(texts) - 1]
    return run_arm(job, arm, stratum=0, seed=seed, stop=StopFlag(), model=model)


def test_schedule_earns_on_each_kind_of_probe_what_its_seed_is_worth(
    plan: Path, tmp_path: Path
) -> None:
    run = run_of(probe_job("context", tmp_path), f"schedule:{plan}")

    # The blueprint suits the first kind: 70 % at the end, against 10 % in the other.
    earned = {(env.context, round(env.task_return, 9)) for env in run.envs}
    assert earned == {("kind-0", 2.1), ("kind-1", 0.3)}
    assert all(msgspec.to_builtins(env.actions[0])["step"] == 2 for env in run.envs)


def test_fixed_context_is_that_of_every_episode(plan: Path, tmp_path: Path) -> None:
    job = probe_job("context", tmp_path, contexts={"kind-1": 1.0})

    run = run_of(job, f"schedule:{plan}")

    assert {(env.context, round(env.task_return, 9)) for env in run.envs} == {("kind-1", 0.3)}


def test_yoked_arm_does_what_the_policy_did_under_another_seed(job: Job, checkpoint: Path) -> None:
    yoked = run_of(job, f"yoked:{checkpoint}", seed=5)
    donor = run_of(job, f"ppo:{checkpoint}", seed=5 + YOKE_OFFSET)

    assert sum(len(env.actions) for env in yoked.envs) > 0
    for mine, theirs in zip(yoked.envs, donor.envs, strict=True):
        # What its own env refuses is left out.
        assert set(mine.actions) <= set(theirs.actions)


def test_random_matched_acts_as_often_as_the_policy_or_less(job: Job, checkpoint: Path) -> None:
    policy = run_of(job, f"ppo:{checkpoint}")

    matched = run_of(job, f"ppo:{checkpoint}", "random-matched", model=policy)

    for mine, theirs in zip(matched.envs, policy.envs, strict=True):
        done, given = (Counter(row.op for row in env.actions) for env in (mine, theirs))
        assert done <= given
        assert done["germinate"] > 0
    assert [env.actions for env in matched.envs] != [env.actions for env in policy.envs]


def test_blind_policy_does_something_else(job: Job, checkpoint: Path) -> None:
    seeing, blind = (run_of(job, f"{kind}:{checkpoint}") for kind in ("ppo", "blind"))

    assert [env.actions for env in blind.envs] != [env.actions for env in seeing.envs]


def test_policy_that_was_trained_blind_is_compared_blind(job: Job, tmp_path: Path) -> None:
    run = tiny_run(
        tmp_path / "b", n_episodes=1, max_epochs=STEPS, lifecycle=QUICK, blind=True
    ).run_dir
    path = last_checkpoint(run)
    assert load_run(path).job.training.blind

    alone, blind = run_of(job, f"ppo:{path}"), run_of(job, f"blind:{path}")

    assert [env.actions for env in alone.envs] == [env.actions for env in blind.envs]


def test_blind_policy_needs_another_env(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose at least two with --envs"):
        run_of(tiny_job(tmp_path, n_envs=1), f"blind:{checkpoint}")


def test_schedule_for_other_slots_is_refused(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps([{**PLAN[0], "slot": "r7c7"}]))

    with pytest.raises(UsageError, match="acts on r7c7 and the comparison has the slots"):
        run_of(job, f"schedule:{path}")


def test_static_arm_has_the_hosts_of_the_contexts(tmp_path: Path) -> None:
    settings = {"task": TINY_FAMILY, "n_envs": 4, "max_epochs": STEPS, "lifecycle": QUICK}
    policy = last_checkpoint(tiny_run(tmp_path / "p", n_episodes=1, **settings).run_dir)
    job = tiny_job(tmp_path, **settings)
    grown = run_of(job, f"ppo:{policy}")
    assert len({env.topology.host_params for env in grown.envs}) > 1

    static = run_of(job, f"ppo:{policy}", "static-final", model=grown)

    assert [env.topology.host_params for env in static.envs] == [
        env.topology.host_params for env in grown.envs
    ]
    assert [env.context for env in static.envs] == [env.context for env in grown.envs]


def test_static_arm_of_a_probe_is_refused(tmp_path: Path) -> None:
    job = probe_job("context", tmp_path, n_envs=2)
    model = run_of(job, "wait")
    copied = Arm(name="wait", command="wait")
    static = Arm(name="static-final", command="wait", kind=ArmKind.STATIC, copies=copied)

    with pytest.raises(UsageError, match="has no network to train from scratch"):
        run_arm(job, static, stratum=0, seed=5, stop=StopFlag(), model=model)


def test_command_compares_a_schedule_on_a_probe(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = esper_train(
        [
            *("compare", "--task", "probe:context", "--arms", "wait", f"schedule:{plan}"),
            *("--seeds", "1-2", "--envs", "4", "--out", str(tmp_path / "runs"), "--json"),
        ]
    )

    report = json.loads(capsys.readouterr().out)
    assert code == 0
    waiting = next(arm for arm in report["arms"] if arm["arm"] == "wait")
    # The host alone stays at 40 %.
    assert waiting["task_return"]["value"] == pytest.approx(1.2)


def test_flops_of_an_arm_have_the_trials_of_its_seeds(
    job: Job, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_trials(*_: object) -> TargetCost:
        return TargetCost(train=0.0, trial=1.0)

    monkeypatch.setattr(FlopMeter, "per_target", only_trials)

    run = run_of(job, f"schedule:{plan}")

    # One pass in TRAINING, and one before the ramp; the trial looks at the whole of these passes.
    assert [env.train_flops for env in run.envs] == [2 * IMAGE_SIZES["train"]] * len(run.envs)
