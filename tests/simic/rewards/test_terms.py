"""Readings that several reward modes share."""

import pytest
from tests.simic.rewards.builders import inputs

from esper.leyline.errors import ContractError
from esper.simic.rewards.terms import committed_share


def test_committed_share_is_the_accuracy_of_the_fossils_from_0_to_1() -> None:
    assert committed_share(inputs(committed_accuracy_pct=37.5)) == 0.375


def test_committed_share_names_the_step_that_was_not_measured() -> None:
    with pytest.raises(ContractError, match="step 17"):
        committed_share(inputs(step=17, committed_accuracy_pct=None))
