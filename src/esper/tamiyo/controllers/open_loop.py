"""Controllers that do not look at what they act on: fixed schedules, and random acts by number."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from esper.leyline.actions import ActionSpec, Op
from esper.leyline.legality import ActionRules, is_legal
from esper.leyline.messages import EnvEvidence
from esper.leyline.streams import StreamPurpose, stream_seed
from esper.tamiyo.controllers.baselines import choice_of, legal_targets, random_request, wait_in
from esper.tamiyo.controllers.protocol import Choice, Situation

__all__ = ["MatchedController", "ScheduleController"]


@dataclass(eq=False, slots=True)
class ScheduleController:
    """Carries out each env's list of actions, each in its step; what is illegal then is dropped."""

    rules: ActionRules
    schedules: Sequence[Mapping[int, ActionSpec]]
    """By step; one per env, or one for all."""
    name: str = "schedule"

    def begin_round(self, round_index: int) -> None:
        """Do nothing: there is no state to reset."""

    def choose(self, situation: Situation) -> Choice:
        """Return the actions of this step."""
        return choice_of(
            [
                self._for_env(env_id, env, situation.step)
                for env_id, env in enumerate(situation.envs)
            ],
            situation,
        )

    def _for_env(self, env_id: int, env: EnvEvidence | None, step: int) -> ActionSpec:
        schedule = self.schedules[env_id % len(self.schedules)]
        action, reports = schedule.get(step), () if env is None else env.reports
        if action is None or not is_legal(action, reports, self.rules):
            return wait_in(self.rules)
        return action


@dataclass(eq=False, slots=True)
class MatchedController:
    """Acts at random, as often with each op as given for each env."""

    rules: ActionRules
    seed: int
    num_steps: int
    """Length of an episode."""
    acts: Sequence[Mapping[Op, int]]
    """How often each env is to carry out each op."""
    name: str = "random-matched"
    _left: list[Counter[Op]] = field(init=False)

    def __post_init__(self) -> None:
        """Start the first round."""
        self.begin_round(0)

    def begin_round(self, round_index: int) -> None:
        """Start with all acts left."""
        self._left = [Counter(acts) for acts in self.acts]

    def choose(self, situation: Situation) -> Choice:
        """Sample one action per env, each from its own random stream."""
        return choice_of(
            [
                # Nothing is drawn for the others: an act that is drawn counts as used.
                wait_in(self.rules) if env is None else self._for_env(env, situation)
                for env in situation.envs
            ],
            situation,
        )

    def _for_env(self, env: EnvEvidence, situation: Situation) -> ActionSpec:
        source = stream_seed(
            self.seed,
            purpose=StreamPurpose.ACTION,
            round=situation.round,
            env=env.env_id,
            step=situation.step,
        )
        random, left = Random(source), self._left[env.env_id]
        # Every step that is left is as likely to be used as any other.
        is_due = random.random() * (self.num_steps - situation.step) < left.total()
        request = random_request(random, self.rules)
        targets = {
            op: legal_targets(request, op, env.reports, self.rules) for op in left if left[op]
        }
        ops = [op for op, found in targets.items() if found]
        if not is_due or not ops:
            return wait_in(self.rules)
        (op,) = random.choices(ops, [left[op] for op in ops])
        left[op] -= 1
        return random.choice(targets[op])
