"""Arms side by side: paired, kept, exact."""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pytest
from tests.builders.messages import topology_slot
from tests.builders.tiny_runs import tiny_job, tiny_run
from tests.builders.tiny_tasks import TINY
from tests.simic.training.runs import last_checkpoint
from tests.simic.training.small_runs import read_events
from tests.simic.training.worker_runs import note_worker_pids

from esper.leyline.actions import Blueprint, Style
from esper.leyline.comparison import ArmRun, ComparisonReport, EpisodeMeasure
from esper.leyline.config import Job
from esper.leyline.errors import (
    InterruptedRunError,
    RunFailedError,
    UnknownNameError,
    UnreadableFileError,
    UsageError,
)
from esper.leyline.payloads import TopologyManifestRecorded
from esper.leyline.stages import Stage
from esper.leyline.telemetry import EventType
from esper.leyline.workers import Command, Train
from esper.runtime.tasks import registered_task
from esper.simic.evaluation import compare as comparing
from esper.simic.evaluation.arm_run import run_arm
from esper.simic.evaluation.arms import Arm, ArmKind, check_topologies, parse_arms
from esper.simic.evaluation.compare import compare
from esper.simic.evaluation.evaluate import evaluate_controller
from esper.simic.evaluation.summary import summarize
from esper.simic.training.static_work import PlantedSeed, seeds_in
from esper.simic.training.vectorized import run_job
from esper.tolaria.process_port import ProcessPort
from esper.tolaria.stopping import StopFlag

SEEDS = (5, 6)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return last_checkpoint(tiny_run(tmp_path_factory.mktemp("trained"), n_episodes=1).run_dir)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    # Seeds reach the output within the four steps of a tiny episode.
    quick = {"auto_forward": [1, 2, 3], "min_training_steps": 1}
    return tiny_job(tmp_path, lifecycle=quick, max_epochs=6)


def timeless(run: ArmRun) -> ArmRun:
    return msgspec.structs.replace(run, wall_s=0.0)


def without_times(report: ComparisonReport) -> ComparisonReport:
    arms = tuple(msgspec.structs.replace(arm, wall_s=0.0) for arm in report.arms)
    return msgspec.structs.replace(report, arms=arms)


def run_of(job: Job, text: str, seed: int = 5) -> ArmRun:
    (arm, _) = parse_arms([text, "wait" if text != "wait" else "random"])
    return run_arm(job, arm, stratum=0, seed=seed, stop=StopFlag())


def test_testing_after_every_step_changes_nothing_of_the_run(job: Job) -> None:
    run = run_of(job, "random")

    report = evaluate_controller(job, command="random", seeds=[5])

    assert [env.final_pct for env in run.envs] == [e.test_accuracy_pct for e in report.envs]
    assert [env.total_reward for env in run.envs] == [e.episode.total_reward for e in report.envs]
    assert [env.task_return for env in run.envs] == [e.episode.task_return for e in report.envs]
    assert report.mean.task_return == pytest.approx(fmean(env.task_return for env in run.envs))
    assert [env.num_params_added for env in run.envs] == [e.num_params_added for e in report.envs]


def test_measures_of_an_env_agree_with_its_curve(job: Job) -> None:
    env = run_of(job, "periodic").envs[0]

    assert len(env.curve_pct) == 6
    assert env.final_pct == env.curve_pct[-1]
    assert env.best_pct in env.curve_pct
    assert env.mean_pct == pytest.approx(sum(env.curve_pct) / 6)


def test_arms_of_one_seed_start_from_the_same_network(job: Job) -> None:
    # In the first step nothing has been decided yet.
    starts = {
        tuple(env.curve_pct[0] for env in run_of(job, arm).envs) for arm in ("wait", "random")
    }

    assert len(starts) == 1


def test_waiting_costs_least_and_adds_nothing(job: Job) -> None:
    waiting, growing = run_of(job, "wait"), run_of(job, "periodic")

    assert all(env.num_params_added == 0 and env.topology.slots == () for env in waiting.envs)
    assert sum(env.train_flops for env in waiting.envs) < sum(
        env.train_flops for env in growing.envs
    )


def test_comparison_is_the_same_again_and_for_any_number_of_lanes(
    job: Job, checkpoint: Path, tmp_path: Path
) -> None:
    arms = parse_arms([f"ppo:{checkpoint}", "random"])
    run = msgspec.structs.replace(job.run, lanes=2)

    once = compare(job, arms, seeds=SEEDS, directory=tmp_path / "a")
    again = compare(
        msgspec.structs.replace(job, run=run), arms, seeds=SEEDS, directory=tmp_path / "b"
    )

    assert without_times(once) == without_times(again)


def test_interrupted_comparison_goes_on_with_what_it_has(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = parse_arms(["wait", "random"])
    whole = compare(job, arms, seeds=SEEDS, directory=tmp_path)
    lost = next(tmp_path.glob("random-seed6-*.json"))
    lost.unlink()
    found: list[tuple[str, int, bool]] = []

    again = compare(
        job,
        arms,
        seeds=SEEDS,
        directory=tmp_path,
        progress=lambda run, was_found: found.append((run.arm, run.seed, was_found)),
    )

    assert without_times(again) == without_times(whole)
    assert found[:2] == [("wait", 5, True), ("random", 5, True)]
    # The others go side by side, and are reported in the order in which they end.
    assert sorted(found[2:]) == [("random", 6, False), ("wait", 6, True)]


def test_runs_side_by_side_end_as_they_do_alone(job: Job, checkpoint: Path, tmp_path: Path) -> None:
    arms = parse_arms([f"ppo:{checkpoint}", "static-final", "random", "periodic"])
    run = msgspec.structs.replace(job.run, lanes=4)
    made: dict[tuple[str, int], ArmRun] = {}

    compare(
        msgspec.structs.replace(job, run=run),
        arms,
        seeds=SEEDS,
        directory=tmp_path,
        progress=lambda run, was_found: made.update({(run.arm, run.seed): run}),
    )

    # Those of the first seed have the machine for themselves.
    seed, alone = SEEDS[-1], dict[str, ArmRun]()
    for arm in arms:
        model = None if arm.copies is None else alone[arm.copies.name]
        alone[arm.name] = run_arm(job, arm, stratum=0, seed=seed, stop=StopFlag(), model=model)
        assert made[arm.name, seed] == msgspec.structs.replace(alone[arm.name], wall_s=None)


def test_wall_clock_is_that_of_runs_which_had_the_machine_for_themselves(
    job: Job, tmp_path: Path
) -> None:
    made: dict[tuple[str, int], float | None] = {}

    report = compare(
        job,
        parse_arms(["wait", "random"]),
        seeds=SEEDS,
        directory=tmp_path,
        progress=lambda run, was_found: made.update({(run.arm, run.seed): run.wall_s}),
    )

    assert [made[arm, 6] for arm in ("wait", "random")] == [None, None]
    assert [arm.wall_s for arm in report.arms] == [made["wait", 5], made["random", 5]]


@pytest.mark.parametrize("is_stopped_first", [True, False])
def test_failure_is_reported_and_no_other_run_begins(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stopped_first: bool
) -> None:
    begun: list[tuple[str, int]] = []
    both_begun = threading.Barrier(2)

    def failing(job: Job, arm: Arm, *, seed: int, stop: StopFlag, **options: Any) -> ArmRun:
        begun.append((arm.name, seed))
        if seed == 6:
            both_begun.wait(timeout=60)
            if arm.name == "random":
                # A lane that hangs is given up like this: it stops the others, then it fails.
                if is_stopped_first:
                    stop.set("a lane hangs")
                raise RunFailedError("broken")
            stop.checkpoint()
        return run_arm(job, arm, seed=seed, stop=stop, **options)

    monkeypatch.setattr(comparing, "run_arm", failing)
    run = msgspec.structs.replace(job.run, lanes=2)

    with pytest.raises(RunFailedError, match="broken"):
        compare(
            msgspec.structs.replace(job, run=run),
            parse_arms(["random", "wait"]),
            seeds=(5, 6, 7, 8, 9, 10),
            directory=tmp_path,
        )

    # A worker may have begun its next run before the failure reached the pool; not all have.
    assert len(begun) < 12


def test_time_of_a_run_that_had_company_is_taken_when_it_comes_first(
    job: Job, tmp_path: Path
) -> None:
    arms = parse_arms(["wait", "random"])
    compare(job, arms, seeds=(5, 6), directory=tmp_path)

    report = compare(job, arms, seeds=(6, 5), directory=tmp_path)

    assert all(arm.wall_s is not None for arm in report.arms)
    assert {run.wall_s is None for run in read_all(tmp_path, seed=6)} == {False}


def read_all(directory: Path, *, seed: int) -> list[ArmRun]:
    paths = directory.glob(f"*-seed{seed}-*.json")
    return [msgspec.json.decode(path.read_bytes(), type=ArmRun) for path in paths]


def paths_of(arm: Arm, jobs: list[Job], directory: Path) -> set[Path]:
    return {
        comparing.RunStore(directory=directory, job=job, greedy=greedy).path_of(arm, 0, 5)
        for job in jobs
        for greedy in (True, False)
    }


def test_runs_of_another_configuration_are_not_taken_for_these(
    job: Job, checkpoint: Path, tmp_path: Path
) -> None:
    shorter = msgspec.structs.replace(job.training, max_epochs=3)
    jobs = [job, msgspec.structs.replace(job, training=shorter)]
    policy, static, wait = parse_arms([f"ppo:{checkpoint}", "static-final", "wait"])

    assert len(paths_of(policy, jobs, tmp_path)) == 4
    assert len(paths_of(static, jobs, tmp_path)) == 4
    # Choices are likely or not for a policy only.
    assert len(paths_of(wait, jobs, tmp_path)) == 2


def test_runs_of_a_task_that_has_changed_are_not_taken_for_these(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wait, _) = parse_arms(["wait", "random"])
    before = paths_of(wait, [job], tmp_path)
    task = registered_task(job.training.task)
    changed = msgspec.structs.replace(task.spec, batch_size=7)
    monkeypatch.setattr(comparing, "registered_task", lambda _: replace(task, spec=changed))

    assert before.isdisjoint(paths_of(wait, [job], tmp_path))


def test_runs_of_another_version_of_the_code_are_made_again_and_mentioned(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    arms = parse_arms(["wait", "random"])
    reused: list[bool] = []

    def run() -> list[bool]:
        reused.clear()
        compare(
            job,
            arms,
            seeds=SEEDS,
            directory=tmp_path,
            progress=lambda _, was_found: reused.append(was_found),
        )
        return list(reused)

    assert run() == [False] * 4
    assert run() == [True] * 4
    assert caplog.messages == []
    monkeypatch.setattr(comparing, "code_version", lambda: "0badc0de")
    assert run() == [False] * 4
    (message,) = caplog.messages
    assert "4 runs were made by another version of the code and are not used" in message


def test_kept_run_that_cannot_be_read_says_what_to_do(job: Job, tmp_path: Path) -> None:
    arms = parse_arms(["wait", "random"])
    store = comparing.RunStore(directory=tmp_path, job=job, greedy=False)
    store.path_of(arms[0], 0, 5).write_bytes(b"{")

    with pytest.raises(UnreadableFileError, match="remove it to run it again"):
        compare(job, arms, seeds=SEEDS, directory=tmp_path)


def test_static_arm_trains_what_the_policy_ended_with(
    job: Job, checkpoint: Path, tmp_path: Path
) -> None:
    arms = parse_arms([f"ppo:{checkpoint}", "static-final"])

    compare(job, arms, seeds=SEEDS, directory=tmp_path)

    store = comparing.RunStore(directory=tmp_path, job=job, greedy=False)
    kept = [[store.read(arm, 0, seed) for seed in SEEDS] for arm in arms]
    grown, static = ([env for run in runs if run for env in run.envs] for runs in kept)
    assert any(seeds_in(env.topology) for env in grown)
    for ours, theirs in zip(static, grown, strict=True):
        expected = [seed._replace(stage=Stage.FOSSILIZED) for seed in seeds_in(theirs.topology)]
        assert list(seeds_in(ours.topology)) == expected
        assert len(ours.topology.slots) == len(expected)
        assert ours.num_germinated == 0


def test_static_arm_is_built_from_the_recorded_network_alone(job: Job, checkpoint: Path) -> None:
    policy, static = parse_arms([f"ppo:{checkpoint}", "static-final"])
    grown = run_arm(job, policy, stratum=0, seed=5, stop=StopFlag())
    row = topology_slot(
        blueprint="bottleneck",
        stage="BLENDING",
        alpha=0.25,
        style="GATED_GATE",
        num_params=1,
        germinated_at_step=2,
    )
    envs = tuple(
        msgspec.structs.replace(
            env, topology=msgspec.structs.replace(env.topology, slots=(row,) if index else ())
        )
        for index, env in enumerate(grown.envs)
    )
    assert len(envs) == 2

    run = run_arm(
        job,
        static,
        stratum=0,
        seed=5,
        stop=StopFlag(),
        model=msgspec.structs.replace(grown, envs=envs),
    )

    bare, grown_one = (env.topology for env in run.envs)
    assert bare.slots == ()
    assert seeds_in(grown_one) == (
        PlantedSeed("r0c1", Blueprint.BOTTLENECK, Style.GATED_GATE, 0.25, Stage.FOSSILIZED),
    )


def test_network_of_an_arm_is_the_one_that_a_run_of_its_seed_records(
    job: Job, tmp_path: Path
) -> None:
    arm_run = run_of(job, "periodic", seed=job.training.seed)

    run_dir = run_job(job, command="periodic").run_dir

    recorded = [
        event.data
        for event in read_events(run_dir / "events.jsonl")
        if event.event_type is EventType.TOPOLOGY_MANIFEST_RECORDED and event.round == 0
    ]
    assert [env.topology for env in arm_run.envs] == recorded
    assert any(manifest.slots for manifest in recorded)


def test_kept_run_of_an_older_shape_is_refused_with_what_to_do(job: Job, tmp_path: Path) -> None:
    arms = parse_arms(["wait", "random"])
    store = comparing.RunStore(directory=tmp_path, job=job, greedy=False)
    run = msgspec.to_builtins(run_of(job, "wait"))
    for env in run["envs"]:
        env["topology"] = []
    store.path_of(arms[0], 0, 5).write_bytes(msgspec.json.encode(run))

    with pytest.raises(UnreadableFileError, match=r"topology.*remove it to run it again"):
        compare(job, arms, seeds=SEEDS, directory=tmp_path)


def measure(final_pct: float, **changes: object) -> EpisodeMeasure:
    plain = EpisodeMeasure(
        env_id=0,
        curve_pct=(final_pct / 2, final_pct),
        final_pct=final_pct,
        best_pct=final_pct,
        mean_pct=0.75 * final_pct,
        num_params_added=0,
        train_flops=100,
        num_germinated=0,
        num_fossilized=0,
        num_pruned=0,
        num_fossils_measured=0,
        num_fossils_positive=0,
        total_reward=final_pct,
        task_return=final_pct / 10,
        topology=TopologyManifestRecorded(host_params=1, total_params=1, slots=()),
    )
    return msgspec.structs.replace(plain, **changes)


def made_runs(
    scores: dict[str, list[EpisodeMeasure | None]],
) -> dict[tuple[str, int, int], ArmRun]:
    return {
        (arm, 0, seed): ArmRun(
            arm=arm,
            stratum=0,
            seed=seed,
            wall_s=1.0,
            envs=() if env is None else (env,),
            num_failed=int(env is None),
        )
        for arm, envs in scores.items()
        for seed, env in enumerate(envs)
    }


GOOD, BAD = Arm(name="good", command="random"), Arm(name="bad", command="wait")


def test_steady_gain_is_a_contrast_without_spread(job: Job) -> None:
    # Seeds differ widely and arms by exactly one point: pairing takes the seeds' spread away.
    bases = [10.0, 50.0, 90.0]
    runs = made_runs(
        {"good": [measure(base + 1) for base in bases], "bad": [measure(base) for base in bases]}
    )

    (contrast,) = summarize(job, [GOOD, BAD], runs).contrasts

    assert (contrast.final_pp.low, contrast.final_pp.high) == pytest.approx((1.0, 1.0))
    assert contrast.task_return is not None
    assert (contrast.task_return.low, contrast.task_return.high) == pytest.approx((0.1, 0.1))
    assert contrast.probability.value == pytest.approx(6 / 9)


def test_arm_that_is_worse_and_bigger_is_not_on_the_front(job: Job) -> None:
    runs = made_runs({"good": [measure(60.0)] * 2, "bad": [measure(50.0, num_params_added=9)] * 2})

    report = summarize(job, [GOOD, BAD], runs)

    assert [arm.is_on_front for arm in report.arms] == [True, False]


def test_seed_that_lost_a_run_is_left_out_of_every_arm(job: Job) -> None:
    runs = made_runs({"good": [measure(60.0)] * 3, "bad": [measure(50.0), None, measure(50.0)]})

    report = summarize(job, [GOOD, BAD], runs)

    assert report.seeds == (0, 2)
    assert [arm.num_runs for arm in report.arms] == [2, 2]


def test_comparison_without_two_whole_seeds_fails(job: Job) -> None:
    runs = made_runs({"good": [measure(60.0)] * 2, "bad": [None, measure(50.0)]})

    with pytest.raises(RunFailedError, match="1 of 2 seeds"):
        summarize(job, [GOOD, BAD], runs)


def test_band_of_a_curve_is_the_middle_half_of_the_runs(job: Job) -> None:
    finals = [10.0, 20.0, 30.0, 40.0, 90.0]
    runs = made_runs({"good": [measure(final) for final in finals], "bad": [measure(1.0)] * 5})

    good, _ = summarize(job, [GOOD, BAD], runs).arms

    assert good.curve_pct == pytest.approx((19.0, 38.0))
    assert good.curve_low_pct == pytest.approx((10.0, 20.0))
    assert good.curve_high_pct == pytest.approx((20.0, 40.0))


def test_arm_says_how_many_policies_decided_in_it(job: Job, checkpoint: Path) -> None:
    arms = parse_arms([f"ppo:{checkpoint},{checkpoint}", "static-final", "wait"])
    runs = {
        (arm.name, stratum, seed): made_runs({arm.name: [measure(1.0)] * 2})[arm.name, 0, seed]
        for arm in arms
        for stratum in range(arm.num_strata)
        for seed in range(2)
    }

    assert [arm.num_policies for arm in summarize(job, arms, runs).arms] == [2, 2, 0]


def test_share_of_positive_fossils_is_over_all_that_were_measured(job: Job) -> None:
    some = measure(60.0, num_fossils_measured=3, num_fossils_positive=2)
    none = measure(60.0)
    report = summarize(job, [GOOD, BAD], made_runs({"good": [some, none], "bad": [none, none]}))

    assert report.arms[0].positive_fossils_pct == pytest.approx(200 / 3)
    assert report.arms[1].positive_fossils_pct is None


@pytest.mark.parametrize(("flops", "accuracy_pct"), [(100, 60.0), (50, 30.0), (1, 30.0)])
def test_equal_cost_accuracy_is_read_off_the_static_curve(
    job: Job, flops: int, accuracy_pct: float
) -> None:
    copy = Arm(name="copy", command="wait", kind=ArmKind.STATIC, copies=GOOD)
    runs = made_runs({"good": [measure(70.0, train_flops=flops)] * 2, "copy": [measure(60.0)] * 2})

    report = summarize(job, [GOOD, copy], runs)

    assert report.arms[1].equal_flops_pct == pytest.approx(accuracy_pct)


@pytest.mark.parametrize("texts", [["wait"], ["wait", "wait"], []])
def test_too_few_arms_are_refused(texts: list[str]) -> None:
    with pytest.raises(UsageError, match="at least two"):
        parse_arms(texts)


@pytest.mark.parametrize("text", ["wiat", "ppo", "ppo:"])
def test_unknown_arm_is_named(text: str) -> None:
    with pytest.raises(UnknownNameError, match="arm"):
        parse_arms([text, "wait"])


def test_static_arm_without_a_policy_before_it_is_refused() -> None:
    with pytest.raises(UsageError, match="put ppo:CHECKPOINT before it"):
        parse_arms(["wait", "static-final"])


def test_checkpoint_without_a_policy_is_refused(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, command="wait", n_episodes=1)

    with pytest.raises(UsageError, match="which has no policy"):
        parse_arms([f"ppo:{last_checkpoint(run.run_dir)}", "wait"])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"slots": ["r0c0"]}, "slots r0c0 r0c1 and the comparison has r0c0; .* --slots"),
        (
            {"blueprints": ["widen"]},
            "of every run only and the comparison has widen; .*--blueprints",
        ),
    ],
)
def test_policy_of_another_action_space_is_refused(
    settings: dict[str, Any], reason: str, checkpoint: Path, tmp_path: Path
) -> None:
    arms = parse_arms([f"ppo:{checkpoint}", "wait"])

    with pytest.raises(UsageError, match=reason):
        compare(tiny_job(tmp_path, **settings), arms, seeds=SEEDS, directory=tmp_path)


def test_recorded_seeds_of_blueprints_that_are_not_offered_are_refused(tmp_path: Path) -> None:
    row = topology_slot("r0c0", blueprint="widen")
    manifest = TopologyManifestRecorded(host_params=1, total_params=2, slots=(row,))
    arm = Arm(name="static-final:run", command="wait", recorded=(manifest,))

    with pytest.raises(UsageError, match=r"blueprints widen, which .* --blueprints"):
        check_topologies(tiny_job(tmp_path, n_envs=1), arm, {0: manifest}, {0: 1})
    offering = tiny_job(tmp_path, n_envs=1, blueprints=["widen"])
    check_topologies(offering, arm, {0: manifest}, {0: 1})


@pytest.mark.parametrize("seeds", [[], [1], [-1, 2], [3, 3]])
def test_seeds_that_cannot_be_compared_are_refused(
    seeds: list[int], job: Job, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="seeds"):
        compare(job, parse_arms(["wait", "random"]), seeds=seeds, directory=tmp_path)


def test_comparison_stops_when_asked_to(job: Job, tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()

    with pytest.raises(InterruptedRunError, match="0 of 4 runs are saved"):
        compare(
            job,
            parse_arms(["wait", "random"]),
            seeds=SEEDS,
            directory=tmp_path,
            shutdown_event=stop,
        )


@pytest.mark.parametrize(
    ("task", "asked", "chosen"),
    [
        ("digits", "auto", "processes"),
        (TINY, "auto", "threads"),  # registered only here
        ("digits", "threads", "threads"),
        ("digits", "ray", "ray"),
    ],
)
def test_a_run_beside_others_has_one_worker(
    task: str, asked: str, chosen: str, tmp_path: Path
) -> None:
    options = comparing._beside_others(tiny_job(tmp_path, task=task, run={"engine": asked})).run
    assert (options.engine, options.workers, options.lanes) == (chosen, 1, 1)


POLICY = "ppo:builtin:digits_growth"


def digits_job(tmp_path: Path, engine: str = "auto", **settings: Any) -> Job:
    """Return a job of a task that every process knows."""
    quick = {"auto_forward": [1, 2, 3], "min_training_steps": 1}
    size = {"n_envs": 1, "max_epochs": 5, "batch_size_per_env": 250}
    settings = {**size, "lifecycle": quick, **settings}
    return tiny_job(tmp_path, task="digits", run={"engine": engine, "lanes": 2}, **settings)


@pytest.fixture
def worker_pids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return note_worker_pids(monkeypatch)


def test_a_comparison_in_worker_processes_one_of_them_killed_is_that_on_threads(
    tmp_path: Path, worker_pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, killed = ProcessPort.submit, list[int]()

    def killing(port: ProcessPort, command: Command) -> Any:
        future = submit(port, command)
        if command == Train(step=2) and not killed:
            killed.append(port.pid)
            os.kill(port.pid, signal.SIGKILL)
        return future

    monkeypatch.setattr(ProcessPort, "submit", killing)
    arms = parse_arms([POLICY, "static-final", "random"])

    reports = [
        compare(digits_job(tmp_path, engine), arms, seeds=SEEDS, directory=tmp_path / engine)
        for engine in ("auto", "threads")
    ]

    assert without_times(reports[0]) == without_times(reports[1])
    kept = [sorted(path.name for path in (tmp_path / e).iterdir()) for e in ("auto", "threads")]
    assert kept[0] == kept[1]
    # The runs of the second seed and the replacement; those of the first are too short for them.
    assert len(worker_pids) == 3 + 1
    assert killed[0] in worker_pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in worker_pids)


def test_a_stop_ends_the_runs_beside_each_other_and_their_processes(
    tmp_path: Path, worker_pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, submit = threading.Event(), ProcessPort.submit

    def stopping(port: ProcessPort, command: Command) -> Any:
        if command == Train(step=2):
            stop.set()
        return submit(port, command)

    monkeypatch.setattr(ProcessPort, "submit", stopping)
    job, arms = digits_job(tmp_path, max_epochs=1000), parse_arms(["wait", "random"])
    for arm in arms:  # the runs of the first seed
        run = ArmRun(arm=arm.name, stratum=0, seed=5, wall_s=1.0, envs=(), num_failed=1)
        comparing.RunStore(directory=tmp_path / "kept", job=job, greedy=False).write(run, arm)

    with pytest.raises(InterruptedRunError, match="2 of 4 runs are saved"):
        compare(job, arms, seeds=SEEDS, directory=tmp_path / "kept", shutdown_event=stop)

    assert worker_pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in worker_pids)
