"""What the tests of the view share."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
