"""The account file: found where it should be, beneath a job on EC2, and nowhere else."""

from pathlib import Path

import pytest

from bamboo.config.account import account_defaults, account_file
from bamboo.config.load import job_from_json, job_to_json, load_job
from bamboo.config.tree import CloudConfig, Subnet
from bamboo.errors import InputError

SECRET = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:bamboo-store-admin-1"
ACCOUNT = f"""
[cloud]
region = "eu-west-1"
zones = ["eu-west-1a", "eu-west-1b"]
launch_template = "bamboo-worker"
subnets = [{{ zone = "eu-west-1a", id = "subnet-a" }}, {{ zone = "eu-west-1b", id = "subnet-b" }}]
security_group = "sg-1"
instance_profile = "bamboo-worker-1"
bucket = "bamboo-1"
store_secret = "{SECRET}"
"""
EC2 = '[cloud]\nprovider = "ec2"\n'


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cloud.toml"
    path.write_text(ACCOUNT)
    monkeypatch.setenv("BAMBOO_CONFIG", str(path))
    return path


def cloud_of(tmp_path: Path, text: str, *overrides: str) -> CloudConfig:
    path = tmp_path / "job.toml"
    path.write_text(text)
    return load_job(path, overrides).cloud


def test_a_job_on_ec2_takes_from_the_account_what_it_does_not_say(
    account: Path, tmp_path: Path
) -> None:
    cloud = cloud_of(tmp_path, EC2 + 'zones = ["eu-west-1b"]\n')
    assert (cloud.region, cloud.zones) == ("eu-west-1", ("eu-west-1b",))
    assert cloud.subnets[1] == Subnet(zone="eu-west-1b", id="subnet-b")
    assert (cloud.security_group, cloud.bucket) == ("sg-1", "bamboo-1")
    assert cloud.store_secret == SECRET


def test_what_the_job_or_the_command_line_says_goes_before(account: Path, tmp_path: Path) -> None:
    cloud = cloud_of(tmp_path, EC2 + 'bucket = "mine"\n', "cloud.security_group=sg-2")
    assert (cloud.bucket, cloud.security_group) == ("mine", "sg-2")
    assert cloud.launch_template == "bamboo-worker"


def test_the_provider_may_come_from_the_command_line(account: Path, tmp_path: Path) -> None:
    assert cloud_of(tmp_path, "", "cloud.provider=ec2").bucket == "bamboo-1"


def test_a_local_job_does_not_look_at_it(account: Path, tmp_path: Path) -> None:
    assert cloud_of(tmp_path, "") == CloudConfig()
    account.write_text("not [ toml")
    assert cloud_of(tmp_path, "") == CloudConfig()


@pytest.mark.parametrize("said", ["file", "option"])
def test_what_stands_in_another_region_is_left_out(
    account: Path, tmp_path: Path, said: str
) -> None:
    region, zones = 'region = "us-east-1"', 'zones = ["us-east-1a"]'
    if said == "file":
        cloud = cloud_of(tmp_path, f"{EC2}{region}\n{zones}\n")
    else:
        cloud = cloud_of(tmp_path, f"{EC2}{zones}\n", f"cloud.{region}")
    assert (cloud.subnets, cloud.bucket, cloud.launch_template) == ((), "", "")


def test_a_job_keeps_what_it_was_launched_with(account: Path, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(EC2)
    job = load_job(path)
    account.unlink()
    assert job_from_json(job_to_json(job)) == job


def test_without_an_account_a_job_is_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAMBOO_CONFIG", str(tmp_path / "none"))
    assert cloud_of(tmp_path, EC2) == CloudConfig(provider="ec2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cloud\n", "cloud.toml: is not valid TOML"),
        ('[cloud]\nregoin = "x"\n', "cloud.regoin = 'x': is unknown; did you mean 'region'?"),
        ("[cloud]\nzones = 3\n", "cloud.zones = 3: must be a list"),
        ("[train]\nsteps = 3\n", "holds train, and may hold [cloud] only"),
        ("cloud = 3\n", "cloud = 3: is a section"),
    ],
)
def test_a_wrong_account_is_one_line(
    account: Path, tmp_path: Path, text: str, message: str
) -> None:
    account.write_text(text)
    with pytest.raises(InputError) as caught:
        cloud_of(tmp_path, EC2)
    assert message in str(caught.value)
    assert str(account) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('zones = ["eu-west-1c"]', "has eu-west-1c, of which cloud.subnets names none"),
        (
            'subnets = [{ zone = "eu-west-1a", id = "a" }, { zone = "eu-west-1a", id = "b" },'
            '{ zone = "eu-west-1b", id = "b" }]',
            "names a zone twice",
        ),
        ('store_secret = "hunter2"', "is no reference of a secret; give its ARN"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    account: Path, tmp_path: Path, line: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        cloud_of(tmp_path, f"{EC2}{line}\n")
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_where_the_account_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("BAMBOO_CONFIG", str(tmp_path / "named.toml"))
    assert account_file() == tmp_path / "named.toml"
    monkeypatch.delenv("BAMBOO_CONFIG")
    assert account_file() == tmp_path / "xdg" / "bamboo" / "cloud.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert account_file() == tmp_path / "home" / ".config" / "bamboo" / "cloud.toml"
    assert account_defaults() == {}
