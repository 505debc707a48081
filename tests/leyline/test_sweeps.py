"""The table `[sweep]` of a configuration file is checked before anything runs."""

import pytest

from esper.leyline.errors import ConfigError
from esper.leyline.jobs import layer_from_text
from esper.leyline.sweeps import Dimension, split_sweep

GOOD = """
[training]
task = "probe:memory"

[sweep]
name = "lr"
trials = 3

[sweep.space]
"training.lr" = { low = 1e-5, high = 1e-2, log = true }
"training.n_envs" = { choices = [2, 4] }
"""


def test_a_sweep_is_split_off_from_the_configuration() -> None:
    spec, rest = split_sweep(layer_from_text(GOOD, source="a.toml", is_toml=True), "a.toml")
    assert rest == {"training": {"task": "probe:memory"}}
    assert (spec.name, spec.trials, spec.location) == ("lr", 3, "lr.journal")
    assert spec.space["training.lr"] == Dimension(low=1e-5, high=1e-2, log=True)
    assert spec.space["training.n_envs"].ends() == (2, 4)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('name = "lr"', "", r"a\.toml: sweep: object missing required field `name`"),
        ("trials = 3", "trials = 0", r"a\.toml: sweep\.trials = 0: must be at least 1"),
        ("trials", "trails", r"a\.toml: unknown key 'sweep\.trails'; did you mean 'sweep\.trials'"),
        ("high = 1e-2, ", "", r"sweep\.space\.training\.lr .*needs choices, or low and high"),
        ("low = 1e-5", "low = 0.0", "log needs low above 0 and no step"),
        ("high = 1e-2", "high = 1e-9", "is above high"),
        ("choices = [2, 4]", "choices = [2, 4], low = 1", "has choices and a range; give one"),
        ("high = 1e-2", "high = 1e-9", r"= \{'low': 1e-05, 'high': 1e-09, 'log': True\}: low"),
    ],
)
def test_a_mistake_is_named_with_its_place(before: str, after: str, message: str) -> None:
    assert before in GOOD
    layer = layer_from_text(GOOD.replace(before, after), source="a.toml", is_toml=True)
    with pytest.raises(ConfigError, match=message):
        split_sweep(layer, "a.toml")


def test_a_file_without_a_sweep_says_where_there_is_an_example() -> None:
    with pytest.raises(ConfigError, match=r"a\.toml: sweep = 3: must be a table"):
        split_sweep({"sweep": 3}, "a.toml")
    with pytest.raises(ConfigError, match=r"no table \[sweep\]; docs/sweeps\.md"):
        split_sweep({"training": {}}, "a.toml")
