"""`esper-train sweep` explains what it needs before it loads anything heavy."""

from pathlib import Path

import pytest

from esper.scripts.train import main

TABLE = '[sweep]\nname = "a"\n[sweep.space]\n"training.lr" = { low = 0.1, high = 0.2 }\n'


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        (None, (), "sweep needs --config FILE with a table [sweep]"),
        ("[training]\nseed = 1\n", (), "no table [sweep]"),
        (TABLE, ("--trials", "0"), "--trials: sweep.trials = 0: must be at least 1"),
        (TABLE, ("--resume", "latest"), "--resume: a sweep is continued by the same command"),
    ],
)
def test_what_is_missing_is_one_sentence(
    text: str | None,
    flags: tuple[str, ...],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "sweep.toml"
    if text is not None:
        path.write_text(text)
        flags = ("--config", str(path), *flags)
    assert main(["sweep", *flags]) == 2
    assert message in capsys.readouterr().err
