"""Observation features: the tables that define their names and scaling, and the extractor."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import ClassVar, Final

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.leyline.actions import BLUEPRINTS, Op
from esper.leyline.reports import SeedReport
from esper.leyline.signals import HISTORY_LENGTH, TrainingSignals
from esper.leyline.stages import STAGE_INDEX, Stage
from esper.tamiyo.gather import LocatedReports, locate_reports

__all__ = [
    "BASE_FEATURES",
    "BASE_TABLE",
    "FRESHNESS_DECAY",
    "POINTS_SCALE",
    "SLOT_FEATURES",
    "SLOT_TABLE",
    "SYMLOG_SCALE",
    "UNMEASURED",
    "UNMEASURED_SIGNED",
    "ActionFeedback",
    "Feature",
    "FeatureExtractor",
    "ObservationBatch",
    "Transform",
    "observation_size",
]

UNMEASURED: Final = -1.0
"""Value of a missing or non-finite reading where real readings are not negative."""

UNMEASURED_SIGNED: Final = -2.0
"""Value of a missing or non-finite reading where real readings have either sign."""

FRESHNESS_DECAY: Final = 0.995
"""Factor per step since a contribution was measured."""

SYMLOG_SCALE: Final = 7.0

POINTS_SCALE: Final = math.log1p(100.0)
"""Scale of differences between accuracies: 100 percentage points are 1, and nothing is clipped."""


class Transform(StrEnum):
    """How a raw reading x becomes a feature."""

    LINEAR = "linear"
    """(x - shift) / scale."""
    STEPS = "steps"
    """x / episode length, at most 1."""
    SYMLOG = "symlog"
    """sign(x) ln(1 + |x|) / scale."""
    DECAY = "decay"
    """scale to the power of x."""


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """One column of the observation."""

    name: str
    meaning: str
    source: str
    """Attribute path of the reading in the report or the signals; `-` for a derived feature."""
    transform: Transform = Transform.LINEAR
    shift: float = 0.0
    scale: float = 1.0
    high: float = np.inf
    unmeasured: float | None = None
    """Value of a missing reading; None where readings are never missing."""


def _linear(name: str, source: str, scale: float, meaning: str, *, shift: float = 0.0) -> Feature:
    return Feature(name=name, source=source, scale=scale, shift=shift, meaning=meaning)


def _optional(name: str, source: str, scale: float, meaning: str) -> Feature:
    return Feature(name=name, source=source, scale=scale, meaning=meaning, unmeasured=UNMEASURED)


def _points(name: str, source: str, meaning: str) -> Feature:
    return Feature(
        name=name,
        source=source,
        transform=Transform.SYMLOG,
        scale=POINTS_SCALE,
        unmeasured=UNMEASURED_SIGNED,
        meaning=meaning,
    )


def _flag(name: str, source: str, meaning: str) -> Feature:
    return Feature(name=name, source=source, meaning=meaning)


def _steps(name: str, source: str, meaning: str) -> Feature:
    return Feature(name=name, source=source, transform=Transform.STEPS, high=1.0, meaning=meaning)


def _symlog(name: str, source: str, meaning: str) -> Feature:
    return Feature(
        name=name,
        source=source,
        transform=Transform.SYMLOG,
        scale=SYMLOG_SCALE,
        meaning=meaning,
        unmeasured=UNMEASURED,
    )


def _ago(index: int) -> str:
    return f"at step t - {HISTORY_LENGTH - 1 - index}"


BASE_TABLE: Final = (
    _steps("step", "step", "current step, as a fraction of the episode"),
    _symlog("val_loss", "val_loss", "validation loss"),
    _linear("val_accuracy", "val_accuracy_pct", 100.0, "validation accuracy"),
    *(
        _symlog(f"val_loss_{index}", f"loss_history[{index}]", f"validation loss {_ago(index)}")
        for index in range(HISTORY_LENGTH)
    ),
    *(
        _optional(
            f"val_accuracy_{index}",
            f"accuracy_history[{index}]",
            100.0,
            f"validation accuracy {_ago(index)}",
        )
        for index in range(HISTORY_LENGTH)
    ),
    _linear("share_training", "-", 1.0, "share of slots whose seed trains in isolation"),
    _linear("share_blending", "-", 1.0, "share of slots whose seed is being blended in"),
    _linear("share_grown", "-", 1.0, "share of slots whose seed is in HOLDING or FOSSILIZED"),
    _flag("last_succeeded", "feedback.has_succeeded", "whether the last action succeeded"),
    *(
        _flag(f"last_op_{op.name.lower()}", "feedback.op", f"whether the last op was {op.name}")
        for op in Op
    ),
)
"""The features of the env as a whole, by column; histories are padded on the left."""

SLOT_TABLE: Final = (
    _flag("is_occupied", "-", "whether the slot has a seed, cooldown included"),
    *(
        _flag(f"stage_{stage.name.lower()}", "stage", f"whether the stage is {stage.name}")
        for stage in Stage
    ),
    _linear("alpha", "alpha.alpha", 1.0, "blending weight of the seed"),
    _points("contribution", "contribution_pp", "accuracy with the seed minus without it"),
    _points(
        "contribution_velocity",
        "contribution_velocity_pp",
        "smoothed change of the contribution between measurements",
    ),
    _linear("tempo", "tempo_steps", 12.0, "length of the first ramp"),
    _linear("alpha_target", "alpha.target", 1.0, "alpha at the end of the ramp"),
    _linear("alpha_mode", "alpha.mode", 2.0, "whether alpha is constant, rising or falling"),
    _steps("alpha_steps_total", "alpha.steps_total", "length of the last ramp"),
    _steps("alpha_steps_done", "alpha.steps_done", "completed steps of the ramp"),
    _steps("alpha_steps_to_target", "alpha.steps_to_target", "remaining steps of the ramp"),
    _linear("alpha_velocity", "alpha.velocity", 1.0, "mean change of alpha per step"),
    _linear("algorithm", "algorithm", 2.0, "blending operator: add, multiply or gate", shift=1.0),
    _points("interaction", "interaction_sum_pp", "sum of interactions with other seeds"),
    _symlog("gradient_norm", "gradient.norm", "norm of the seed's gradient"),
    _optional("gradient_health", "gradient.health", 1.0, "health of the seed's gradient"),
    _optional(
        "has_vanishing", "gradient.has_vanishing", 1.0, "whether any parameter's gradient vanishes"
    ),
    _optional(
        "has_exploding", "gradient.has_exploding", 1.0, "whether any parameter's gradient explodes"
    ),
    _optional(
        "previous_gradient_health",
        "previous_gradient_health",
        1.0,
        "gradient health one step earlier",
    ),
    _steps("steps_in_stage", "steps_in_stage", "steps in the current stage"),
    Feature(
        name="freshness",
        source="steps_since_contribution",
        transform=Transform.DECAY,
        scale=FRESHNESS_DECAY,
        meaning="how recently the contribution was measured",
        unmeasured=UNMEASURED,
    ),
    _steps("age", "age_steps", "steps since germination"),
)
"""The features of one slot, by column; an empty slot is all zeros."""

BASE_FEATURES: Final = len(BASE_TABLE)
SLOT_FEATURES: Final = len(SLOT_TABLE)


def observation_size(num_slots: int) -> int:
    """Return the number of features of one env."""
    return BASE_FEATURES + SLOT_FEATURES * num_slots


class ActionFeedback(msgspec.Struct, frozen=True, kw_only=True):
    """The last action as observed by the policy; the defaults apply before the first action."""

    op: Op = Op.WAIT
    has_succeeded: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservationBatch:
    """The policy's observations of all envs."""

    observations: Tensor  # float32 [N, 23 + 31 S]
    blueprint_indices: Tensor  # int64 [N, S]; -1 for an empty slot


@dataclass(frozen=True, slots=True)
class _Scaling:
    """A feature table as vectors, applied to the last axis of raw readings (NaN: unmeasured)."""

    shift: NDArray[np.float64]
    scale: NDArray[np.float64]
    high: NDArray[np.float64]
    unmeasured: NDArray[np.float64]
    is_symlog: NDArray[np.bool_]
    is_decay: NDArray[np.bool_]
    decay: NDArray[np.float64]
    """Bases of the DECAY columns only, in column order."""

    @classmethod
    def of(cls, table: Sequence[Feature], num_steps: int) -> "_Scaling":
        is_decay = np.array([feature.transform is Transform.DECAY for feature in table])
        scale = np.array([_scale_of(feature, num_steps) for feature in table])
        return cls(
            shift=np.array([feature.shift for feature in table]),
            scale=np.where(is_decay, 1.0, scale),
            high=np.array([feature.high for feature in table]),
            unmeasured=np.array([_unmeasured_of(feature) for feature in table]),
            is_symlog=np.array([feature.transform is Transform.SYMLOG for feature in table]),
            is_decay=is_decay,
            decay=scale[is_decay],
        )

    def apply(self, raw: NDArray[np.float64]) -> NDArray[np.float64]:
        is_measured = np.isfinite(raw)
        value = np.where(is_measured, raw, 0.0)
        symlog = value[..., self.is_symlog]
        value[..., self.is_symlog] = np.sign(symlog) * np.log1p(np.abs(symlog))
        value[..., self.is_decay] = self.decay ** value[..., self.is_decay]
        scaled = np.minimum((value - self.shift) / self.scale, self.high)
        return np.where(is_measured, scaled, self.unmeasured)


def _scale_of(feature: Feature, num_steps: int) -> float:
    return float(num_steps) if feature.transform is Transform.STEPS else feature.scale


def _unmeasured_of(feature: Feature) -> float:
    # Missing and non-finite readings are replaced, so that observations are always finite.
    return UNMEASURED if feature.unmeasured is None else feature.unmeasured


def _column(table: Sequence[Feature], name: str) -> int:
    return next(index for index, feature in enumerate(table) if feature.name == name)


def _columns_of(table: Sequence[Feature], prefix: str) -> list[int]:
    return [index for index, feature in enumerate(table) if feature.source.startswith(prefix)]


_LOSS_COLUMNS: Final = _columns_of(BASE_TABLE, "loss_history")
_ACCURACY_COLUMNS: Final = _columns_of(BASE_TABLE, "accuracy_history")
_SHARE_COLUMNS: Final = _columns_of(BASE_TABLE, "-")
_SUCCESS_COLUMN: Final = _column(BASE_TABLE, "last_succeeded")
_OP_COLUMNS: Final = np.array(_columns_of(BASE_TABLE, "feedback.op"))

_OCCUPIED_COLUMN: Final = _column(SLOT_TABLE, "is_occupied")
_STAGE_COLUMNS: Final = np.array(_columns_of(SLOT_TABLE, "stage"))
_GRADIENT_COLUMNS: Final = _columns_of(SLOT_TABLE, "gradient.")
_REPORT_COLUMNS: Final = [
    index
    for index, feature in enumerate(SLOT_TABLE)
    if feature.source not in ("-", "stage") and index not in _GRADIENT_COLUMNS
]
# attrgetter reads all paths of a report in one call, in the order of the columns.
_read_report = attrgetter(*(SLOT_TABLE[index].source for index in _REPORT_COLUMNS))
_read_gradient = attrgetter(
    *(SLOT_TABLE[index].source.removeprefix("gradient.") for index in _GRADIENT_COLUMNS)
)
_read_signals = attrgetter(*(feature.source for feature in BASE_TABLE[:3]))
_NO_GRADIENT: Final = (None,) * len(_GRADIENT_COLUMNS)


@dataclass(eq=False, slots=True)
class FeatureExtractor:
    """Builds the observations of one run."""

    slot_ids: tuple[str, ...]
    num_steps: int
    """Length of an episode."""
    added_blueprints: tuple[str, ...] = ()
    """The blueprints that the run adds."""
    shows_other_envs: ClassVar[bool] = False
    """Whether an env's observation is made of those of other envs."""
    _slot_index: Mapping[str, int] = field(init=False)
    _blueprint_index: Mapping[str, int] = field(init=False)
    _base_scaling: _Scaling = field(init=False)
    _slot_scaling: _Scaling = field(init=False)

    def __post_init__(self) -> None:
        """Convert the tables to vectors."""
        self._slot_index = {slot_id: index for index, slot_id in enumerate(self.slot_ids)}
        known = (*BLUEPRINTS, *self.added_blueprints)
        self._blueprint_index = {name: index for index, name in enumerate(known)}
        self._base_scaling = _Scaling.of(BASE_TABLE, self.num_steps)
        self._slot_scaling = _Scaling.of(SLOT_TABLE, self.num_steps)

    def begin_round(self, round_index: int) -> None:
        """Do nothing: what a round shows does not depend on the rounds before it."""

    def observe(
        self,
        signals: Sequence[TrainingSignals],
        reports_by_env: Sequence[Sequence[SeedReport]],
        feedback: Sequence[ActionFeedback],
    ) -> ObservationBatch:
        """Compute the observations of all envs from signals, seed reports and last actions."""
        num_envs, num_slots = len(signals), len(self.slot_ids)
        located = locate_reports(reports_by_env, self._slot_index)
        where = (located.env_indices, located.slot_indices)
        # In numpy, whose calls cost less than torch's for so few rows.
        slots = np.zeros((num_envs, num_slots, SLOT_FEATURES))
        blueprints = np.full((num_envs, num_slots), -1, dtype=np.int64)
        if located.reports:
            slots[where] = self._slot_scaling.apply(_raw_slots(located))
            blueprints[where] = [
                self._blueprint_index[report.blueprint] for report in located.reports
            ]
        base = self._base_scaling.apply(_raw_base(signals, feedback))
        # After the slots, from which they are computed.
        base[:, _SHARE_COLUMNS] = _stage_shares(slots[..., _STAGE_COLUMNS])
        rows = np.concatenate([base, slots.reshape(num_envs, -1)], axis=1)
        return ObservationBatch(
            observations=torch.from_numpy(rows.astype(np.float32)),
            blueprint_indices=torch.from_numpy(blueprints),
        )


def _raw_base(
    signals: Sequence[TrainingSignals], feedback: Sequence[ActionFeedback]
) -> NDArray[np.float64]:
    raw = np.zeros((len(signals), BASE_FEATURES))
    raw[:, :3] = [_read_signals(env_signals) for env_signals in signals]
    raw[:, _LOSS_COLUMNS] = [_padded(env_signals.loss_history) for env_signals in signals]
    raw[:, _ACCURACY_COLUMNS] = [_padded(env_signals.accuracy_history) for env_signals in signals]
    raw[:, _SUCCESS_COLUMN] = [last.has_succeeded for last in feedback]
    raw[np.arange(len(signals)), _OP_COLUMNS[[last.op for last in feedback]]] = 1.0
    return raw


def _padded(history: tuple[float, ...]) -> tuple[float | None, ...]:
    return (None,) * (HISTORY_LENGTH - len(history)) + history


def _raw_slots(located: LocatedReports) -> NDArray[np.float64]:
    reports = located.reports
    rows = np.arange(len(reports))
    raw = np.zeros((len(reports), SLOT_FEATURES))
    raw[:, _OCCUPIED_COLUMN] = 1.0
    raw[rows, _STAGE_COLUMNS[[STAGE_INDEX[report.stage] for report in reports]]] = 1.0
    # numpy converts None to NaN, which _Scaling treats as unmeasured.
    raw[:, _REPORT_COLUMNS] = np.array([_read_report(report) for report in reports], dtype=float)
    raw[:, _GRADIENT_COLUMNS] = np.array(
        [
            _NO_GRADIENT if report.gradient is None else _read_gradient(report.gradient)
            for report in reports
        ],
        dtype=float,
    )
    return raw


def _stage_shares(one_hot: NDArray[np.float64]) -> NDArray[np.float64]:
    share = one_hot.mean(axis=1)
    grown = share[:, STAGE_INDEX[Stage.HOLDING]] + share[:, STAGE_INDEX[Stage.FOSSILIZED]]
    training, blending = STAGE_INDEX[Stage.TRAINING], STAGE_INDEX[Stage.BLENDING]
    return np.stack([share[:, training], share[:, blending], grown], axis=1)
