"""Which env has the best network."""

import math

from tests.builders.messages import env_evidence, make_signals

from esper.leyline.messages import EnvEvidence, Panic, PanicReason, StepEvidence
from esper.simic.training.checkpoints.run_state import BestEnv, best_env_of


def evidence_of(*measured: tuple[float, float] | None, panicked: int | None = None) -> StepEvidence:
    """Return a step in which envs had these accuracies and losses; None for one that broke."""
    envs = [
        None if pair is None else _env(env_id, *pair, is_panicked=env_id == panicked)
        for env_id, pair in enumerate(measured)
    ]
    return StepEvidence(round=5, step=9, env_ids=tuple(range(len(envs))), envs=tuple(envs))


def _env(env_id: int, accuracy_pct: float, loss: float, *, is_panicked: bool) -> EnvEvidence:
    panic = Panic(reason=PanicReason.NAN, loss=loss, threshold=None, consecutive_anomalies=0)
    return env_evidence(
        env_id,
        9,
        signals=make_signals(step=9, val_accuracy_pct=accuracy_pct, val_loss=loss),
        panic=panic if is_panicked else None,
    )


def test_best_env_has_the_highest_accuracy_and_is_the_first_of_equals() -> None:
    evidence = evidence_of((10.0, 1.0), (30.0, 9.0), (30.0, 0.1))

    assert best_env_of(evidence, by_loss=False) == BestEnv(round=5, env_id=1, score=30.0)


def test_best_env_of_a_language_model_has_the_lowest_loss() -> None:
    evidence = evidence_of((90.0, 1.0), (30.0, 0.5))

    assert best_env_of(evidence, by_loss=True) == BestEnv(round=5, env_id=1, score=-0.5)


def test_envs_that_broke_or_panicked_or_are_not_finite_are_never_the_best() -> None:
    evidence = evidence_of(None, (90.0, 1.0), (math.nan, math.nan), (5.0, 2.0), panicked=1)

    best = best_env_of(evidence, by_loss=False)

    assert best is not None
    assert best.env_id == 3
    assert best_env_of(evidence_of(None, None), by_loss=False) is None
