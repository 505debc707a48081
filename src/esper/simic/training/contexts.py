"""The context of each episode: which one a run draws, and the event that records it."""

from esper.leyline.config import TrainingConfig
from esper.leyline.context_payloads import EpisodeContextDrawn
from esper.leyline.contexts import ContextSpec, draw_context, draw_sterile_seeds
from esper.leyline.episodes import episode_id_of
from esper.leyline.errors import UnknownNameError, UsageError
from esper.leyline.probes import ProbeHostSpec
from esper.leyline.tasks import TaskSpec
from esper.leyline.telemetry import Draft, EventScope
from esper.simic.probes.growth import draw_fate

__all__ = ["check_context", "context_of", "drawn_contexts", "is_drawn", "sterile_seeds_in"]


def context_of(
    task: TaskSpec, config: TrainingConfig, round_index: int, env_id: int
) -> ContextSpec | None:
    """Return the context of an episode; None for a task that has none."""
    if not task.contexts:
        return None
    if isinstance(task.host, ProbeHostSpec) and not config.contexts:
        # A probe draws the kind of its envs itself.
        fate = draw_fate(
            task.host, run_seed=config.seed, round_index=round_index, env_id=env_id, num_seeds=0
        )
        return task.contexts[fate.kind]
    return draw_context(
        task.contexts,
        config.contexts,
        run_seed=config.seed,
        round_index=round_index,
        env_id=env_id,
    )


def check_context(task: TaskSpec, name: str) -> None:
    """Raise if a task has no context of this name."""
    known = [context.name for context in task.contexts]
    if not known:
        raise UsageError(f"task {task.name} has no contexts; leave {name!r} out")
    if name not in known:
        raise UnknownNameError("context", name, known)


def is_drawn(context: ContextSpec, config: TrainingConfig) -> bool:
    """Return whether episodes can have this context."""
    weight = config.contexts.get(context.name, 0.0) if config.contexts else context.weight
    return weight > 0.0


def sterile_seeds_in(
    context: ContextSpec | None, config: TrainingConfig, round_index: int, env_id: int
) -> tuple[bool, ...]:
    """Return which seeds of an episode are sterile, by number; empty if none can be."""
    if context is None or context.sterile_share == 0.0:
        return ()
    return draw_sterile_seeds(
        context,
        run_seed=config.seed,
        round_index=round_index,
        env_id=env_id,
        # At most one germinates in a step.
        num_seeds=config.max_epochs,
    )


def drawn_contexts(task: TaskSpec, config: TrainingConfig, round_index: int) -> list[Draft]:
    """Return the events that record the contexts of a round's episodes, in env order."""
    drafts = []
    for env_id in range(config.n_envs):
        context = context_of(task, config, round_index, env_id)
        if context is None:
            continue
        sterile = sterile_seeds_in(context, config, round_index, env_id)
        payload = EpisodeContextDrawn(
            context=context.name,
            is_permuted=context.is_permuted,
            label_noise=context.label_noise,
            input_scale=context.input_scale,
            kernel_size=context.kernel_size,
            base_channels=context.base_channels,
            num_blocks=context.num_blocks,
            sterile_share=context.sterile_share,
            sterile_seeds=tuple(number for number, is_so in enumerate(sterile) if is_so),
        )
        episode_id = episode_id_of(round_index, env_id, num_envs=config.n_envs)
        scope = EventScope(round=round_index, env_id=env_id, episode_id=episode_id)
        drafts.append(Draft(payload, scope))
    return drafts
