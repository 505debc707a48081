"""What the errors say."""

import pytest

from esper.leyline import errors
from esper.leyline.errors import EsperError, ExitCode, UnknownNameError

EXAMPLES = [
    errors.UnknownKeyError("lrr", "lr", "a.toml"),
    errors.UnknownKeyError("zzz", None, "a.toml"),
    errors.InvalidValueError("lr", -1, "must be positive"),
    errors.SlotIdError("mid"),
    errors.UnknownNameError("task", "digit", ["digits"]),
    errors.UnreadableFileError("a.bin", "truncated"),
    errors.EventDecodeError("missing `seq`", b"{}"),
    errors.TelemetryLostError("events.jsonl", 28, "no space left", 7),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_messages_are_one_line_without_a_full_stop(error: EsperError) -> None:
    text = str(error)
    assert text
    assert "\n" not in text
    assert not text.endswith(".")


def test_every_class_of_the_tree_is_drawn_in_the_docstring() -> None:
    assert errors.__doc__ is not None
    for name in errors.__all__:
        if name.endswith("Error"):
            assert name in errors.__doc__, name


def test_exit_codes_are_the_published_ones() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "FAILED": 1,
        "USAGE": 2,
        "TELEMETRY_INCOMPLETE": 3,
        "INTERNAL": 70,
        "INTERRUPTED": 130,
    }
    assert errors.TelemetryLostError("p", None, "r", 0).exit_code is ExitCode.TELEMETRY_INCOMPLETE
    assert errors.RunFailedError("r").exit_code is ExitCode.FAILED
    assert errors.InterruptedRunError("r").exit_code is ExitCode.INTERRUPTED
    assert errors.ContractError("r").exit_code is ExitCode.INTERNAL


def test_long_foreign_values_are_cut() -> None:
    assert len(str(UnknownNameError("task", "x" * 10_000, ["digits"]))) < 200


def test_a_hint_is_given_only_for_a_likeness() -> None:
    assert "did you mean 'digits'" in str(UnknownNameError("task", "digts", ["digits"]))
    assert "did you mean" not in str(UnknownNameError("task", "zebra", ["digits"]))
