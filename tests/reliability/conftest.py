"""What the reliability tests share."""

import pytest
from tools.soak.kills import Whole, whole_run


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Return the uninterrupted run that disturbed ones are compared with."""
    return whole_run(tmp_path_factory.mktemp("whole"))
