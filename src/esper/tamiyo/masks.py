"""Computes the action masks of all envs from leyline's legality rules."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.leyline.actions import (
    HEAD_SPECS,
    NUM_OPS,
    AlphaSpeed,
    AlphaTarget,
    CurveChoice,
    Head,
    Op,
    Style,
    Tempo,
)
from esper.leyline.alpha import AlphaMode
from esper.leyline.legality import OP_RULES, ActionRules
from esper.leyline.reports import SeedReport
from esper.leyline.stages import COOLDOWN_STAGES, NUM_STAGES, STAGE_INDEX
from esper.tamiyo.gather import LocatedReports, locate_reports
from esper.tamiyo.mask_types import ActionMasks

__all__ = ["ActionMasker"]

_EMPTY = NUM_STAGES
"""Column of an empty slot, after those of the stages."""


BoolArray: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Slots:
    """The part of the slots' state that legality depends on; [N, S] each."""

    stage: NDArray[np.intp]  # _EMPTY where there is no seed
    is_resting: BoolArray
    is_prunable_age: BoolArray


@dataclass(eq=False, slots=True)
class ActionMasker:
    """Computes the masks of one run, with the legality rules as lookup tables."""

    rules: ActionRules
    _slot_index: dict[str, int] = field(init=False)
    _stage_table: BoolArray = field(init=False)  # [6, NUM_STAGES + 1]
    _ignores_ramps: BoolArray = field(init=False)  # [6, 1], as the next two
    _ignores_age: BoolArray = field(init=False)
    _ignores_room: BoolArray = field(init=False)
    _blocks_germination: BoolArray = field(init=False)  # [NUM_STAGES + 1]
    _offered: BoolArray = field(init=False)  # [blueprints]

    def __post_init__(self) -> None:
        """Convert the legality rules to arrays."""
        # From the same rules as `leyline.legality`, which judges single actions: one table lookup
        # for all envs instead of a Python call per env, slot and op.
        table = np.zeros((NUM_OPS, NUM_STAGES + 1), dtype=bool)
        for op, rule in OP_RULES.items():
            if self.rules.is_enabled(op):
                table[op, [STAGE_INDEX[stage] for stage in rule.stages]] = True
                table[op, _EMPTY] = rule.accepts_empty
        blocking = np.zeros(NUM_STAGES + 1, dtype=bool)
        blocking[[STAGE_INDEX[stage] for stage in COOLDOWN_STAGES]] = True
        rows = [OP_RULES[op] for op in Op]
        self._slot_index = {slot_id: index for index, slot_id in enumerate(self.rules.slot_ids)}
        self._stage_table = table
        self._ignores_ramps = np.array([[not rule.needs_rest] for rule in rows])
        self._ignores_age = np.array([[not rule.needs_prune_age] for rule in rows])
        self._ignores_room = np.array([[not rule.needs_room] for rule in rows])
        self._blocks_germination = blocking
        self._offered = np.isin(self.rules.blueprint_choices, self.rules.blueprints)

    def masks(self, reports_by_env: Sequence[Sequence[SeedReport]]) -> ActionMasks:
        """Return the masks of all envs, given the reports of their occupied slots."""
        num_envs = len(reports_by_env)
        slots = self._gather(num_envs, locate_reports(reports_by_env, self._slot_index))
        slot_by_op = self._slot_by_op(slots)
        # An op is legal if it is legal in any slot.
        op: BoolArray = np.logical_or.reduce(slot_by_op, axis=2)
        can_germinate = op[:, Op.GERMINATE, None]
        can_set_target = can_germinate | op[:, Op.SET_ALPHA_TARGET, None]
        return ActionMasks(
            op=torch.from_numpy(op),
            slot_by_op=torch.from_numpy(slot_by_op),
            blueprint=torch.from_numpy(np.tile(self._offered, (num_envs, 1))),
            # A head that no legal op uses has its neutral value as its only choice, and so no
            # entropy.
            style=torch.from_numpy(can_germinate | _neutral(Head.STYLE, Style)),
            tempo=_open(num_envs, Tempo),
            alpha_target=torch.from_numpy(
                can_set_target | _neutral(Head.ALPHA_TARGET, AlphaTarget)
            ),
            alpha_speed=_open(num_envs, AlphaSpeed),
            alpha_curve=_open(num_envs, CurveChoice),
        )

    def legal_ops(self, reports: Sequence[SeedReport]) -> tuple[bool, ...]:
        """Return whether each op is legal in one env, as Python bools."""
        slots = self._gather(1, locate_reports([reports], self._slot_index))
        return tuple(bool(op.any()) for op in self._slot_by_op(slots)[0])

    def _gather(self, num_envs: int, located: LocatedReports) -> _Slots:
        shape = (num_envs, len(self.rules.slot_ids))
        where = (located.env_indices, located.slot_indices)
        stage = np.full(shape, _EMPTY)
        # True for empty slots, so that only the stage decides there.
        is_resting = np.ones(shape, dtype=bool)
        is_prunable_age = np.ones(shape, dtype=bool)
        if located.reports:
            reports, min_age = located.reports, self.rules.lifecycle.min_prune_age_steps
            stage[where] = [STAGE_INDEX[report.stage] for report in reports]
            is_resting[where] = [report.alpha.mode is AlphaMode.HOLD for report in reports]
            is_prunable_age[where] = [report.age_steps >= min_age for report in reports]
        return _Slots(stage=stage, is_resting=is_resting, is_prunable_age=is_prunable_age)

    def _slot_by_op(self, slots: _Slots) -> BoolArray:
        is_blocked: BoolArray = np.logical_or.reduce(self._blocks_germination[slots.stage], axis=1)
        has_room = ~is_blocked
        if self.rules.max_seeds is not None:
            has_room &= (slots.stage != _EMPTY).sum(axis=1) < self.rules.max_seeds
        by_stage = self._stage_table[:, slots.stage].transpose(1, 0, 2)  # [N, 6, S]
        legal: BoolArray = by_stage & (slots.is_resting[:, None] | self._ignores_ramps)
        legal &= slots.is_prunable_age[:, None] | self._ignores_age
        legal &= has_room[:, None, None] | self._ignores_room
        return legal


def _neutral(head: Head, choices: type[IntEnum]) -> BoolArray:
    return np.array([choice == HEAD_SPECS[head].neutral for choice in choices])


def _open(num_envs: int, choices: type[IntEnum]) -> Tensor:
    return torch.ones(num_envs, len(choices), dtype=torch.bool)
