"""The worked examples of docs/rewards.md are true."""

import json
import re

import msgspec
import pytest
from tests.simic.rewards.builders import scheme
from tools.source_modules import ROOT

from esper.leyline.actions import Op
from esper.leyline.rewards import RewardComponents, RewardFamily, RewardInputs, RewardMode
from esper.leyline.stages import Stage
from esper.simic.rewards.dispatcher import compute_reward

TEXT = (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8")
EXAMPLES = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)]


def by_number(value):
    """Replace the names of stages and ops, which the page uses, by their numbers."""
    if isinstance(value, list):
        return [by_number(item) for item in value]
    if isinstance(value, dict):
        return {key: by_number(item) for key, item in value.items()}
    if isinstance(value, str) and value in Stage.__members__:
        return Stage[value].value
    return Op[value].value if isinstance(value, str) and value in Op.__members__ else value


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda item: f"{item['family']}-{item['mode']}")
def test_worked_example_is_what_the_code_computes(example) -> None:
    weights = example.get("reward", {})
    rules = scheme(RewardMode(example["mode"]), RewardFamily(example["family"]), **weights)
    inputs = msgspec.convert(by_number(example["inputs"]), RewardInputs)
    found = compute_reward(inputs, rules)
    components = {
        name: value for name, value in msgspec.to_builtins(found.components).items() if value != 0.0
    }
    assert components == pytest.approx(example["components"], abs=1e-5)
    assert found.total == pytest.approx(example["total"], abs=1e-5)
    assert example["total"] == pytest.approx(sum(example["components"].values()), abs=1e-4)


def test_every_mode_and_family_has_an_example() -> None:
    shown = {(example["family"], example["mode"]) for example in EXAMPLES}
    expected = {(RewardFamily.CONTRIBUTION.value, mode.value) for mode in RewardMode}
    assert shown == expected | {("loss", "shaped")}


def test_the_page_names_every_component() -> None:
    missing = [name for name in RewardComponents.__struct_fields__ if f"`{name}`" not in TEXT]
    assert missing == []
