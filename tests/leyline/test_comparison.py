"""Arms go by names that are short and their own."""

import pytest
from tests.karn.comparisons import arm, comparison


@pytest.mark.parametrize(
    ("arms", "labels"),
    [
        (["ppo:runs/a.pt,runs/b.pt", "wait"], ["ppo", "wait"]),
        (
            ["ppo:e/policy-1.pt,e/policy-2.pt", "ppo:e/clothes-1.pt,e/clothes-2.pt", "wait"],
            ["ppo:policy", "ppo:clothes", "wait"],
        ),
        (["ppo:e/best.pt", "ppo:builtin:digits_growth"], ["ppo:best", "ppo:builtin:digits_growth"]),
        (["ppo:a/best.pt", "ppo:b/best.pt"], ["ppo:a/best.pt", "ppo:b/best.pt"]),
        (["ppo:1.pt,2.pt", "ppo:a/x.pt,y.pt"], ["ppo:1.pt,2.pt", "ppo:a/x.pt,y.pt"]),
        (["ppo:a/x.pt", "ppo:x"], ["ppo:a/x.pt", "ppo:x"]),
    ],
)
def test_arm_goes_by_the_shortest_name_that_is_its_own(arms: list[str], labels: list[str]) -> None:
    report = comparison(*map(arm, arms))

    assert report.labels() == dict(zip(arms, labels, strict=True))
