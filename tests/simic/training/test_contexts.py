"""Episodes of a family of tasks: hidden contexts that do not depend on where envs live."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from tests.builders.tiny_runs import tiny_job, tiny_run
from tests.builders.tiny_tasks import FAMILY, TINY_FAMILY
from tests.simic.training.envs import IMAGES, SLOTS, context_for, germination, world_of
from tests.simic.training.runs import last_checkpoint, lines_of, weights_digest
from tests.simic.training.worker_runs import digits_job, facts_of
from torch import nn

from esper.kasmina.seed import report_of
from esper.leyline.actions import ActionSpec, Op
from esper.leyline.context_payloads import EpisodeContextDrawn
from esper.leyline.contexts import ContextSpec
from esper.leyline.errors import InvalidValueError
from esper.leyline.tasks import CnnHostSpec, TaskSpec, task_named
from esper.leyline.telemetry import decode_event
from esper.nissa.reading.query import query_logs
from esper.nissa.storage.run_directory import read_manifest
from esper.runtime.tasks import registered_task
from esper.simic.training.contexts import context_of
from esper.simic.training.env_factory import build_model
from esper.simic.training.parallel_env_state import ParallelEnvState

ENVS = 4
SETTINGS = {"task": TINY_FAMILY, "n_envs": ENVS}


def drawn_in(run_dir: Path) -> dict[tuple[int | None, int | None], EpisodeContextDrawn]:
    """Return the contexts that a log names, by round and env."""
    events = map(decode_event, (run_dir / "events.jsonl").read_bytes().splitlines())
    return {
        (event.round, event.env_id): event.data
        for event in events
        if isinstance(event.data, EpisodeContextDrawn)
    }


@pytest.fixture(scope="module")
def one_lane(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run(tmp_path_factory.mktemp("one"), run={"lanes": 1}, **SETTINGS).run_dir


@pytest.mark.parametrize("lanes", [2, 4])
def test_contexts_keep_the_bits_for_any_number_of_lanes(
    lanes: int, one_lane: Path, tmp_path: Path
) -> None:
    run_dir = tiny_run(tmp_path, run={"lanes": lanes}, **SETTINGS).run_dir

    assert lines_of(run_dir) == lines_of(one_lane)
    assert weights_digest(last_checkpoint(run_dir)) == weights_digest(last_checkpoint(one_lane))


def test_contexts_keep_the_bits_on_processes(tmp_path: Path) -> None:
    family = {"task": "digits_contexts", "n_episodes": 1}

    threads = facts_of(digits_job(tmp_path / "t", training=family, engine="threads", lanes=1))
    processes = facts_of(digits_job(tmp_path / "p", training=family, engine="processes", workers=2))

    assert processes == threads


@pytest.mark.parametrize("num_envs", [1, 3])
def test_context_of_an_episode_does_not_depend_on_the_number_of_envs(
    num_envs: int, one_lane: Path, tmp_path: Path
) -> None:
    # With a controller that waits: what it does could not change the contexts either way.
    run_dir = tiny_run(tmp_path, command="wait", task=TINY_FAMILY, n_envs=num_envs).run_dir

    many, few = drawn_in(one_lane), drawn_in(run_dir)
    assert len(many) == 2 * ENVS
    assert few == {place: many[place] for place in few}
    assert len(few) == 2 * num_envs


def test_only_contexts_with_a_weight_are_drawn(one_lane: Path) -> None:
    names = {payload.context for payload in drawn_in(one_lane).values()}

    assert len(names) > 1
    assert names <= {"plain", "wide", "odd"}


def test_context_on_request_is_in_every_episode_and_changes_its_host(tmp_path: Path) -> None:
    run_dir = tiny_run(
        tmp_path, command="wait", task=TINY_FAMILY, contexts={"held_out": 1.0}
    ).run_dir

    assert {payload.context for payload in drawn_in(run_dir).values()} == {"held_out"}
    task = registered_task(TINY_FAMILY).spec
    context = context_for(task, contexts={"held_out": 1.0}, slots=("r0c0",))
    layers = [part for part in build_model(context, 0, 0).modules() if isinstance(part, nn.Conv2d)]
    assert [layer.out_channels for layer in layers] == [5, 10]


def test_unknown_context_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="no such context; it has plain, wide, odd, held"):
        tiny_job(tmp_path, task=TINY_FAMILY, contexts={"wde": 1.0})
    with pytest.raises(InvalidValueError, match="must have a weight above 0"):
        tiny_job(tmp_path, task=TINY_FAMILY, contexts={"wide": 0.0})


def test_manifest_and_views_name_the_contexts(one_lane: Path) -> None:
    assert read_manifest(one_lane).contexts == FAMILY
    drawn = [payload.context for payload in drawn_in(one_lane).values()]

    rows = query_logs(
        [one_lane / "events.jsonl"], "SELECT context, num_episodes FROM contexts ORDER BY context"
    ).rows

    assert rows == sorted((name, drawn.count(name)) for name in set(drawn))


def test_every_shipped_host_offers_the_slots_of_its_family() -> None:
    for name in ("digits_contexts", "digits_lottery", "fashion_contexts"):
        task = task_named(name)
        for context in task.contexts:
            host = task.host_in(context)
            assert isinstance(host, CnnHostSpec)
            assert set(task.defaults["slots"]) <= set(host.slot_ids)


# --- Seed luck -----------------------------------------------------------------------------------

LUCKLESS = msgspec.structs.replace(
    IMAGES, contexts=(ContextSpec(name="luckless", sterile_share=1.0),)
)


def weights_of(env: ParallelEnvState) -> list[torch.Tensor]:
    return [value.detach().clone() for value in env.model.slot(SLOTS[0]).seed_parameters()]


def trained(
    task: TaskSpec,
) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor], ParallelEnvState]:
    """Return the weights of a seed before and after some steps, and its env."""
    world = world_of(task)
    world.look()
    world.act(germination())
    world.look()
    world.act(ActionSpec(op=Op.ADVANCE, slot_id=SLOTS[0]))
    before = weights_of(world.env)
    for _ in range(3):
        world.wait()
    return before, weights_of(world.env), world.env


def test_sterile_seed_has_gradients_and_never_changes() -> None:
    before, after, env = trained(LUCKLESS)

    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    (report,) = env.reports
    assert report.gradient is not None
    assert report.gradient.norm > 0.0


def test_other_seeds_change() -> None:
    before, after, _ = trained(IMAGES)

    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_sterile_seed_stays_the_identity() -> None:
    _, _, env = trained(LUCKLESS)
    slot = env.model.slot(SLOTS[0])
    features = torch.rand(2, slot.channels, 4, 4)

    assert torch.allclose(slot.switched_on(features), features)


def test_reports_do_not_tell_sterile_seeds_from_others() -> None:
    _, _, env = trained(LUCKLESS)
    state = env.model.slot(SLOTS[0]).occupant()
    assert state.is_sterile

    facts = {"slot_id": "r0c0", "num_params": 1, "upstream_alpha_sum": 0.0}
    hidden, plain = (
        report_of(
            msgspec.structs.replace(state, is_sterile=is_so), downstream_alpha_sum=0.0, **facts
        )
        for is_so in (True, False)
    )
    assert hidden == plain


def test_luck_follows_the_order_of_germination() -> None:
    task = msgspec.structs.replace(IMAGES, contexts=(ContextSpec(name="even", sterile_share=0.5),))
    world = world_of(task)
    env = world.env
    expected = env.sterile_seeds[:3]

    for slot_id in SLOTS:
        world.look()
        world.act(germination(slot_id))

    found = [env.model.slot(slot_id).occupant().is_sterile for slot_id in SLOTS]
    assert tuple(found) == expected


def test_context_of_a_task_without_any_is_none() -> None:
    assert context_of(IMAGES, context_for().config, 0, 0) is None
