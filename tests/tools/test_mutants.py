"""Mutants are small defects in what a module does, and in nothing else."""

from pathlib import Path

import pytest
from tools.soak.mutants import SUBJECTS, Subject, mutants

SOURCE = '''
"""A module."""
__all__ = ["first"]

def first(items: list[int], *, is_last: bool = False) -> int | None:
    """Return an item."""
    if not items:
        raise ValueError("no items")
    items.sort()
    return items[-1 if is_last else 0]
'''


class Sample(Subject):
    """A module that is not one of ours."""

    path = Path()


def test_every_decision_constant_and_effect_is_changed_once(tmp_path: Path) -> None:
    Sample.path = tmp_path / "sample.py"
    Sample.path.write_text(SOURCE)

    found = [mutant.what.partition(": ")[2] for mutant in mutants(Sample("sample", (), ""))]

    assert sorted(found) == sorted(
        [
            "False  ->  True",
            "if not items:  ->  if not not items:",
            "not items  ->  not not items",
            "raise ValueError('no items')  ->  pass",
            "items.sort()  ->  pass",
            "return items[-1 if is_last else 0]  ->  return None",
            "-1 if is_last else 0  ->  -1 if not is_last else 0",
            "1  ->  2",
            "0  ->  1",
        ]
    )


@pytest.mark.parametrize("name", SUBJECTS)
def test_subjects_and_their_tests_exist(name: str) -> None:
    subject = SUBJECTS[name]
    assert subject.path.is_file()
    assert all((Path(__file__).parents[1] / test).is_file() for test in subject.tests)
