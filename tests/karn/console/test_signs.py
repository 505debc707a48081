"""Signs of the grades."""

from esper.karn.console.signs import STYLES, grade_sign
from esper.karn.view.thresholds import Grade


def test_every_grade_has_a_sign_of_its_own_in_either_alphabet() -> None:
    for is_ascii in (False, True):
        signs = [grade_sign(level, is_ascii).plain for level in Grade]
        assert len(set(signs)) == len(Grade)
        assert all(sign.isascii() for sign in signs) == is_ascii
    assert STYLES.keys() == set(Grade)
