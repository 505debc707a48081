"""Action masks: what leyline's table of rules allows, for all envs at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor

from esper.leyline.actions import (
    BLUEPRINTS_BY_TOPOLOGY,
    HEAD_SPECS,
    NUM_OPS,
    AlphaSpeed,
    AlphaTarget,
    Blueprint,
    CurveChoice,
    Head,
    Op,
    Style,
    Tempo,
)
from esper.leyline.alpha import AlphaMode
from esper.leyline.legality import GERMINATION_BLOCKING_STAGES, OP_RULES, ActionRules
from esper.leyline.reports import SeedReport
from esper.leyline.stages import NUM_STAGES, STAGE_INDEX
from esper.tamiyo.gather import LocatedReports, locate_reports
from esper.tamiyo.mask_types import ActionMasks

__all__ = ["ActionMasker"]

_EMPTY = NUM_STAGES
"""Column of an empty slot, after those of the stages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Slots:
    """The state of all slots of all envs, as far as legality looks at it; [N, S] each."""

    stage: Tensor  # int64, _EMPTY where there is no seed
    is_resting: Tensor  # bool
    is_prunable_age: Tensor  # bool


@dataclass(frozen=True, slots=True)
class ActionMasker:
    """Computes masks for one run; holds the rules as lookup tables."""

    rules: ActionRules
    _slot_index: dict[str, int] = field(init=False)
    _stage_table: Tensor = field(init=False)  # bool [6, NUM_STAGES + 1]
    _needs_rest: Tensor = field(init=False)  # bool [6], as the next two
    _needs_prune_age: Tensor = field(init=False)
    _needs_room: Tensor = field(init=False)
    _blocks_germination: Tensor = field(init=False)  # bool [NUM_STAGES + 1]

    def __post_init__(self) -> None:
        """Lay the table of rules out as tensors."""
        table = torch.zeros(NUM_OPS, NUM_STAGES + 1, dtype=torch.bool)
        for op, rule in OP_RULES.items():
            if self.rules.is_enabled(op):
                table[op, [STAGE_INDEX[stage] for stage in rule.stages]] = True
                table[op, _EMPTY] = rule.accepts_empty
        blocking = torch.zeros(NUM_STAGES + 1, dtype=torch.bool)
        blocking[[STAGE_INDEX[stage] for stage in GERMINATION_BLOCKING_STAGES]] = True
        rows = [OP_RULES[op] for op in Op]
        tables = {
            "_slot_index": {slot_id: i for i, slot_id in enumerate(self.rules.slot_ids)},
            "_stage_table": table,
            "_needs_rest": torch.tensor([rule.needs_rest for rule in rows]),
            "_needs_prune_age": torch.tensor([rule.needs_prune_age for rule in rows]),
            "_needs_room": torch.tensor([rule.needs_room for rule in rows]),
            "_blocks_germination": blocking,
        }
        for name, value in tables.items():
            object.__setattr__(self, name, value)

    def masks(self, reports_by_env: Sequence[Sequence[SeedReport]]) -> ActionMasks:
        """Return the masks of all envs, given each one's occupied slots."""
        num_envs = len(reports_by_env)
        slots = self._gather(num_envs, locate_reports(reports_by_env, self._slot_index))
        slot_by_op = self._slot_by_op(slots)
        op = slot_by_op.any(dim=2)
        can_germinate = op[:, Op.GERMINATE, None]
        can_set_target = can_germinate | op[:, Op.SET_ALPHA_TARGET, None]
        offered = torch.zeros(num_envs, len(Blueprint), dtype=torch.bool)
        offered[:, list(BLUEPRINTS_BY_TOPOLOGY[self.rules.topology])] = True
        return ActionMasks(
            op=op,
            slot_by_op=slot_by_op,
            blueprint=offered,
            style=can_germinate | _neutral(Head.STYLE, Style),
            tempo=torch.ones(num_envs, len(Tempo), dtype=torch.bool),
            alpha_target=can_set_target | _neutral(Head.ALPHA_TARGET, AlphaTarget),
            alpha_speed=torch.ones(num_envs, len(AlphaSpeed), dtype=torch.bool),
            alpha_curve=torch.ones(num_envs, len(CurveChoice), dtype=torch.bool),
        )

    def _gather(self, num_envs: int, located: LocatedReports) -> _Slots:
        shape = (num_envs, len(self.rules.slot_ids))
        stage = torch.full(shape, _EMPTY)
        is_resting = torch.ones(shape, dtype=torch.bool)
        is_prunable_age = torch.ones(shape, dtype=torch.bool)
        if located.reports:
            where = (torch.tensor(located.env_indices), torch.tensor(located.slot_indices))
            reports = located.reports
            min_age = self.rules.lifecycle.min_prune_age_steps
            stage[where] = torch.tensor([STAGE_INDEX[report.stage] for report in reports])
            is_resting[where] = torch.tensor(
                [report.alpha.mode is AlphaMode.HOLD for report in reports]
            )
            is_prunable_age[where] = torch.tensor(
                [report.age_steps >= min_age for report in reports]
            )
        return _Slots(stage=stage, is_resting=is_resting, is_prunable_age=is_prunable_age)

    def _slot_by_op(self, slots: _Slots) -> Tensor:
        has_room = ~self._blocks_germination[slots.stage].any(dim=1)
        if self.rules.max_seeds is not None:
            has_room &= (slots.stage != _EMPTY).sum(dim=1) < self.rules.max_seeds
        legal = self._stage_table[:, slots.stage].transpose(0, 1)  # [N, 6, S]
        legal &= slots.is_resting[:, None] | ~self._needs_rest[:, None]
        legal &= slots.is_prunable_age[:, None] | ~self._needs_prune_age[:, None]
        return legal & (has_room[:, None, None] | ~self._needs_room[:, None])


def _neutral(head: Head, choices: type[IntEnum]) -> Tensor:
    mask = torch.zeros(1, len(choices), dtype=torch.bool)
    mask[0, HEAD_SPECS[head].neutral] = True
    return mask
