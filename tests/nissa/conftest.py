"""What the tests of the bus share."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
