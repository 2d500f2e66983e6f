"""What `[eval]` refuses, each in one line."""

from pathlib import Path

import pytest

from bamboo.errors import InputError
from tests.jobs import tiny_job

GOOD = ["eval.every_steps=2", "eval.source=path", "eval.path=text.txt", "eval.samples=4"]
STOP = 'eval.stop={metric="%s", patience=%d, better="%s"}'


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("eval.every_steps=0", "eval.every_steps = 0: asks for no evaluation; give a number"),
        ("eval.every_steps=7", "is beyond the run, which has train.steps = 6; take at most 6"),
        ("eval.every_steps=-1", "eval.every_steps = -1: is out of range"),
        ("eval.samples=0", "eval.samples = 0: evaluates nothing; give a number of samples from 1"),
        ("eval.source=", "eval.source = '': names no text; take one of python-stdlib, path, tok"),
        ("eval.source=web", "eval.source = 'web': is not possible; take one of"),
        (
            "eval.source=held.py",
            '= \'held.py\': names no source; write "python-stdlib" or "file.py:h',
        ),
        ("eval.source=held.py:f", "eval.path = 'text.txt': is not read; give it together with one"),
        ("eval.source=python-stdlib", "eval.path = 'text.txt': is not read"),
        ("eval.path=", "eval.path = '': names no file or folder"),
        ("eval.path=nowhere", "eval.path = 'nowhere': there is no file or folder"),
        (STOP % ("loss", 0, "auto"), "eval.stop.patience = 0: is below 1"),
        (STOP % ("", 2, "auto"), "eval.stop.metric = '': names no metric"),
        (STOP % ("accuracy", 2, "auto"), "does not say which value of 'accuracy' is the better"),
        (STOP % ("loss", 2, "best"), "eval.stop.better = 'best': is not possible"),
        ('chaos.kill=[{step=3,stage=1,phase="evaluation"}]', "take one with an evaluation before"),
        ('chaos.kill=[{step=4,stage=1,phase="evaluation",microbatch=2}]', "give 0 to 1"),
    ],
)
def test_refusals_are_one_line_and_say_what(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        tiny_job(tmp_path, [*GOOD, override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_evaluation_after_the_last_step_can_be_hit(tmp_path: Path) -> None:
    kill = 'chaos.kill=[{step=6,stage=1,phase="evaluation",microbatch=1}]'
    assert tiny_job(tmp_path, [*GOOD, kill]).chaos.kill[0].step == 6
