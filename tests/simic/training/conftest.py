"""Runs that several tests look at and none changes."""

import pytest
from tests.simic.training.small_runs import SmallRun, lively_run, small_run


@pytest.fixture(scope="session")
def lively(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """Two rounds in which seeds germinate, are weighed, pruned and fossilized."""
    return lively_run(tmp_path_factory.mktemp("lively"))


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """A short run in which nothing breaks."""
    return small_run(tmp_path_factory.mktemp("whole"), max_epochs=4)
