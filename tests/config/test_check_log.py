"""What `[log]` may say."""

from pathlib import Path

import pytest

from bamboo.config.load import job_from_json, job_to_json
from bamboo.errors import InputError
from tests.jobs import tiny_job


def test_trackers_are_kept_with_the_job(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, ['log.to=["mlflow", "otlp"]', "log.project=mine.1"])
    assert (job.log.to, job.log.project) == (("mlflow", "otlp"), "mine.1")
    assert job_from_json(job_to_json(job)).log == job.log


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            'log.to=["tensorbord"]',
            "--set: log.to = ['tensorbord']: has 'tensorbord', which is no tracker; did you mean "
            "'tensorboard'? There are tensorboard, trackio, wandb, mlflow, otlp",
        ),
        ('log.to=["x"]', "has 'x', which is no tracker; there are tensorboard, trackio, wandb, "),
        ('log.to=["otlp", "otlp"]', "has 'otlp' twice; name each tracker once"),
        ("log.project=a b", "log.project = 'a b': is no name that every tracker takes; take at"),
        ("log.to=wandb", "log.to = 'wandb': must be a list; put it in brackets"),
    ],
)
def test_what_is_no_tracker_is_refused_in_one_line(
    tmp_path: Path, override: str, words: str
) -> None:
    with pytest.raises(InputError) as refused:
        tiny_job(tmp_path, [override])
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
