"""Extras: a missing package is one sentence with the extra that installs it."""

import sys

import pytest

from esper.leyline.errors import ExitCode, MissingExtraError
from esper.leyline.extras import EXTRAS, require_packages


@pytest.mark.parametrize("package", [name for members in EXTRAS.values() for name in members])
def test_a_missing_package_is_named_with_the_extra_that_installs_it(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError) as caught:
        require_packages("--flag", package, alternative="do something else")
    (extra,) = (name for name, members in EXTRAS.items() if package in members)
    assert str(caught.value) == (
        f"--flag needs {package}, which is not installed; pip install 'esper-grow[{extra}]', "
        "or do something else"
    )
    assert caught.value.exit_code == ExitCode.USAGE
