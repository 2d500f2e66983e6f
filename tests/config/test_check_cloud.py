"""What [cloud] says of the instances, together: one line for each impossible job."""

from pathlib import Path

import pytest

from bamboo.config.load import load_job
from bamboo.errors import InputError


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('anchors = 1\nmarket = "on-demand"', "stand beside spot nodes only"),
        ("anchors = 5", "are more than the 1 x 4 nodes of the grid"),
        ('subnets = ["subnet-1"]', "must be a table"),
        ('subnets = [{ zone = "us-east-1a", id = "s-1" }]', "of which cloud.subnets names none"),
        ('boot_script = "none.sh"\nbucket = "bucket"', "is no file"),
        (f'boot_script = "{"x" * 400}"\nbucket = "bucket"', "is no file"),
        ('bucket = "b; shutdown"', "is no name of a bucket"),
        ('stack = "b/../admin"', "is no name of a stack"),
        ('bucket = "s3://mine"', "without s3:// before them"),
        ('boot_script = "job.toml"', "cloud.boot_script needs it"),
        ('zones = ["us-east-1a; shutdown"]', "are not all in cloud.region"),
        ('zones = ["us-east-1a/../x"]', "are not all in cloud.region"),
        ('instance_types = ["g5.xlarge", "g5`x`"]', "which is no type of an instance"),
        ('prefer = "luck"', "take one of price, value"),
        ("gang_s = 0", "give a number above 0"),
    ],
)
def test_an_impossible_cloud_is_one_line(tmp_path: Path, lines: str, said: str) -> None:
    path = tmp_path / "job.toml"
    path.write_text(f"[cloud]\n{lines}\n")
    with pytest.raises(InputError, match="cloud") as caught:
        load_job(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_job_with_anchors_subnets_and_a_boot_script_is_possible(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(
        '[cloud]\nanchors = 4\nzones = ["us-east-1a"]\n'
        'subnets = [{ zone = "us-east-1a", id = "subnet-1" }]\nbucket = "bucket"\n'
        'boot_script = "job.toml"\nimage = "ami-1"\n'
    )
    assert load_job(path).cloud.anchors == 4
