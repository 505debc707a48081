"""Comparisons: runs every arm with every seed, with paired random streams, saving each run."""

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from esper.kasmina.blueprints import is_installed_blueprint
from esper.leyline.comparison import ArmRun, ComparisonReport
from esper.leyline.config import EngineKind, Job, RunOptions
from esper.leyline.errors import InterruptedRunError, UnreadableFileError, UsageError
from esper.nissa.storage.files import FileSystem, read_limited, write_atomically
from esper.runtime.datasets import TensorDataset
from esper.runtime.tasks import is_installed_task, registered_task
from esper.simic.evaluation.arm_run import run_arm
from esper.simic.evaluation.arms import Arm
from esper.simic.evaluation.search import Found, Search, Searcher, first_job
from esper.simic.evaluation.summary import summarize
from esper.simic.training.assembly.code_version import code_version
from esper.simic.training.assembly.machine import num_lanes_for, one_thread_per_worker
from esper.simic.training.assembly.worker_setup import load_data
from esper.tolaria.devices import resolve_device, resolve_env_devices
from esper.tolaria.side_by_side import results_side_by_side
from esper.tolaria.stopping import CallerEvent, StopFlag
from esper.tolaria.supervisor import stop_signals

__all__ = ["FirstSearch", "RunStore", "compare"]

MAX_RUN_BYTES: Final = 64 << 20
ALONE: Final = RunOptions(workers=1)
"""On an accelerator, which may have memory for one run only, searches follow one another."""
DEFAULT_SEARCH_EPISODES: Final = 480
"""Of each search, where no policy is compared."""
Progress = Callable[[ArmRun, bool], None]
"""Called for every run, on the caller's thread, with whether it was reused from the directory."""


class FirstSearch(NamedTuple):
    """A cheaper task that is searched before the task of a comparison."""

    task: str
    num_episodes: int


class _Wanted(NamedTuple):
    """A run of a comparison."""

    arm: Arm
    stratum: int
    seed: int

    @property
    def key(self) -> tuple[str, int, int]:
        return self.arm.name, self.stratum, self.seed


class _Made(NamedTuple):
    """A run that is saved."""

    run: ArmRun
    is_reused: bool


_Chain = Sequence[_Wanted]
"""Runs of one seed in order, each of which may copy an earlier one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStore:
    """Saves every run in its own file, so that an interrupted comparison can continue."""

    directory: Path
    job: Job
    greedy: bool

    def path_of(self, arm: Arm, stratum: int, seed: int) -> Path:
        """Return the path of a run; everything that could change its result is in the name."""
        training = msgspec.structs.replace(self.job.training, seed=seed, n_episodes=1)
        is_greedy = self.greedy and arm.follows_policy
        # The definition of a task may change while its name stays, e.g. a task under development.
        task = registered_task(training.task).spec
        encoded = msgspec.json.encode([task, training, arm.command, arm.digest(stratum), is_greedy])
        digest = hashlib.sha256(encoded).hexdigest()[:16]
        kind = arm.name.partition(":")[0]
        return self.directory / f"{kind}-seed{seed}-{code_version()}-{digest}.json"

    def num_of_other_versions(self) -> int:
        """Count the saved runs that other versions of the code have made."""
        saved = list(self.directory.glob("*-seed*-*.json"))
        mine = list(self.directory.glob(f"*-seed*-{code_version()}-*.json"))
        return len(saved) - len(mine)

    def read(self, arm: Arm, stratum: int, seed: int) -> ArmRun | None:
        """Return a saved run, or None."""
        path = self.path_of(arm, stratum, seed)
        try:
            if not path.exists():
                return None
            data = read_limited(path, MAX_RUN_BYTES, "run of a comparison")
            run = msgspec.json.decode(data, type=ArmRun)
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            raise UnreadableFileError(path, f"{error}; remove it to run it again") from None
        # A checkpoint may have been moved since: runs are matched by its content, not its path.
        return msgspec.structs.replace(run, arm=arm.name, stratum=stratum)

    def write(self, run: ArmRun, arm: Arm) -> None:
        """Save a run."""
        path = self.path_of(arm, run.stratum, run.seed)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomically(FileSystem(), path, msgspec.json.encode(run))
        except OSError as error:
            raise UsageError(f"{path}: cannot save the run: {error.strerror}") from None


def compare(
    job: Job,
    arms: Sequence[Arm],
    *,
    seeds: Sequence[int],
    directory: Path,
    greedy: bool = False,
    search_episodes: int | None = None,
    search_first: FirstSearch | None = None,
    keep_found: Path | None = None,
    progress: Progress | None = None,
    shutdown_event: CallerEvent | None = None,
) -> ComparisonReport:
    """Run the missing runs of every arm and seed, and return the report.

    Runs of the first seed run one at a time and measure the wall time; on the CPU the others run
    in parallel, each in a worker of its own: with `run.engine` auto in a process, or on a thread
    if the task is registered only in this process.

    Args:
        job: the job to run; its seed is used for the bootstrap, its rounds are ignored.
        arms: the controllers to compare.
        seeds: one round of envs each, the same for all arms.
        directory: where runs are saved.
        greedy: policies take the most likely actions instead of sampling.
        search_episodes: episodes of each search; None takes as many as the first policy's training.
        search_first: the task that each search begins with; None begins with random trials.
        keep_found: directory for what searches find: a file for each, that an arm can be made of.
        progress: called for every run.
        shutdown_event: set it to stop at the next cancellation point.
    """
    if len(seeds) < 2 or min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise UsageError(
            f"seeds {list(seeds)}: expected at least two distinct seeds >= 0, such as 1000-1019"
        )
    stop = StopFlag(shutdown_event)
    with one_thread_per_worker(), stop_signals(stop):
        store = RunStore(directory=directory, job=job, greedy=greedy)
        if num_others := store.num_of_other_versions():
            logging.getLogger(__name__).warning(
                "%s: %d runs were made by another version of the code and are not used",
                directory,
                num_others,
            )
        dataset = load_data(job, stop)
        is_on_cpu = _is_on_cpu(job)
        searcher = Searcher(
            job=_beside_others(job) if is_on_cpu else job,
            directory=directory,
            num_episodes=search_episodes or _num_training_episodes(arms),
            stop=stop,
            dataset=dataset,
            first=None if search_first is None else _first(job, search_first, directory, stop),
        )
        arms = _resolved(arms, searcher, directory, job.run if is_on_cpu else ALONE)
        if keep_found is not None:
            _keep_found(arms, keep_found)
        bench = _Workbench(job=job, store=store, stop=stop, dataset=dataset, progress=progress)
        first, *others = ([*_chains(arms, seed)] for seed in seeds)
        try:
            bench.run_alone(first)
            # Ordered by seed, so that the runs of an interrupted comparison are paired.
            rest = [chain for chains in others for chain in chains]
            if is_on_cpu:
                bench.run_side_by_side(rest)
            else:
                bench.run_alone(rest)
        except InterruptedRunError:
            num_wanted = len(seeds) * sum(arm.num_strata for arm in arms)
            raise InterruptedRunError(
                f"comparison interrupted ({stop.reason}): {len(bench.runs)} of {num_wanted} runs "
                f"are saved in {directory}; run the same command again to continue"
            ) from None
    return summarize(job, arms, bench.runs, greedy=greedy)


def _first(job: Job, wanted: FirstSearch, directory: Path, stop: StopFlag) -> Searcher:
    """Return what searches another task first."""
    its_job = _beside_others(first_job(job, wanted.task))
    return Searcher(
        job=its_job,
        directory=directory,
        num_episodes=wanted.num_episodes,
        stop=stop,
        dataset=load_data(its_job, stop),
    )


def _num_training_episodes(arms: Sequence[Arm]) -> int:
    """Return how many episodes the first policy has learned from."""
    policy = next((policy for arm in arms for policy in arm.policies), None)
    if policy is None:
        return DEFAULT_SEARCH_EPISODES
    return policy.state.rounds_completed * policy.job.training.n_envs


def _resolved(
    arms: Sequence[Arm], searcher: Searcher, directory: Path, options: RunOptions
) -> list[Arm]:
    """Return the arms with what their searches have found."""
    try:
        wanted = dict.fromkeys(search for arm in arms for search in searcher.searches_of(arm))
        num_searches = num_lanes_for(options.workers or options.lanes, max(len(wanted), 1))
        series = [partial(_found_by, searcher, search) for search in wanted]
        for _ in results_side_by_side(series, num_searches):
            searcher.stop.checkpoint()
        return [searcher.resolve(arm) for arm in arms]
    except InterruptedRunError:
        raise InterruptedRunError(
            f"search interrupted ({searcher.stop.reason}): its trials are saved in {directory}; "
            "run the same command again to continue"
        ) from None


def _found_by(searcher: Searcher, search: Search) -> Iterator[Found]:
    yield searcher.find(search)


def _keep_found(arms: Sequence[Arm], directory: Path) -> None:
    """Write the schedule and the rule that were found, as `schedule:FILE` and `rule:FILE`."""
    searched = {"schedule:search": "schedule.json", "rule:search": "rule.json"}
    for arm in arms:
        name = searched.get(arm.name)
        if name is None:
            continue
        found = arm.schedule if arm.rule is None else arm.rule
        path = directory / name
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_atomically(FileSystem(), path, msgspec.json.encode(found) + b"\n")
        except OSError as error:
            raise UsageError(f"{path}: cannot save what was found: {error.strerror}") from None


def _chains(arms: Sequence[Arm], seed: int) -> Iterator[_Chain]:
    """Return a seed's runs; a run that copies another one follows it in the same chain."""
    for arm in arms:
        if arm.copies is None:
            chain = (arm, *(other for other in arms if other.copies is arm))
            for stratum in range(arm.num_strata):
                yield [_Wanted(link, stratum, seed) for link in chain]


def _is_on_cpu(job: Job) -> bool:
    """Return whether all devices are CPUs: an accelerator may have memory for one run only."""
    training = job.training
    device = resolve_device(training.device)
    envs = resolve_env_devices(training.devices, policy_device=device, n_envs=training.n_envs)
    return {item.type for item in (device, *envs)} == {"cpu"}


@dataclass(eq=False, kw_only=True, slots=True)
class _Workbench:
    """Reuses saved runs or executes them."""

    job: Job
    store: RunStore
    stop: StopFlag
    dataset: TensorDataset
    progress: Progress | None
    runs: dict[tuple[str, int, int], ArmRun] = field(default_factory=dict)

    def run_alone(self, chains: Sequence[_Chain]) -> None:
        """Execute runs one after another, each on all workers."""
        for chain in chains:
            for made in self._follow(chain, is_alone=True):
                self._report(made)

    def run_side_by_side(self, chains: Sequence[_Chain]) -> None:
        """Execute as many runs at a time as there are workers; after a failure none is started."""
        num_runs = num_lanes_for(self.job.run.workers or self.job.run.lanes, len(chains))
        series = [partial(self._follow, chain, is_alone=False) for chain in chains]
        for made in results_side_by_side(series, num_runs):
            self._report(made)

    def _report(self, made: _Made) -> None:
        if self.progress is not None:
            self.progress(made.run, made.is_reused)

    def _follow(self, chain: _Chain, *, is_alone: bool) -> Iterator[_Made]:
        """Yield the runs of a chain as they are executed or found."""
        for wanted in chain:
            self.stop.checkpoint()
            kept = self.store.read(*wanted)
            if kept is not None and kept.wall_s is None and is_alone:
                kept = None  # its wall time has not been measured yet
            run = kept or self._run(wanted, is_alone=is_alone)
            if kept is None:
                self.store.write(run, wanted.arm)
            self.runs[wanted.key] = run
            yield _Made(run, kept is not None)

    def _run(self, wanted: _Wanted, *, is_alone: bool) -> ArmRun:
        copied = wanted.arm.copies
        model = None if copied is None else self.runs[wanted._replace(arm=copied).key]
        run = run_arm(
            self.job if is_alone else _beside_others(self.job),
            wanted.arm,
            stratum=wanted.stratum,
            seed=wanted.seed,
            stop=self.stop,
            greedy=self.store.greedy,
            model=model,
            dataset=self.dataset,
        )
        # The wall time of a run that shared the machine with others is meaningless.
        return run if is_alone else msgspec.structs.replace(run, wall_s=None)


def _beside_others(job: Job) -> Job:
    """Return the job of a run that others run beside: with one worker, as these take the cores."""
    kind = job.run.engine
    if kind is EngineKind.AUTO:
        # Small networks share one interpreter badly, even if each run has few envs and steps.
        is_elsewhere = is_installed_task(job.training.task) and all(
            map(is_installed_blueprint, job.training.blueprints)
        )
        kind = EngineKind.PROCESSES if is_elsewhere else EngineKind.THREADS
    options = msgspec.structs.replace(job.run, engine=kind, workers=1, lanes=1)
    return msgspec.structs.replace(job, run=options)
