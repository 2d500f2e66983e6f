"""What stands in terraform/ and infra/ as text agrees with what the code calls it."""

import re
from pathlib import Path

from bamboo.agent.config import AgentConfig
from cli.planning import LAUNCH_TEMPLATE
from cloud.ec2.requests import RUN_TAG
from cloud.ec2.user_data import boot_script

ROOT = Path(__file__).resolve().parents[2]


def text_of(name: str) -> str:
    return (ROOT / name).read_text()


def test_the_launch_template_has_the_name_that_is_launched() -> None:
    names = text_of("terraform/variables.tf")
    default = re.search(r'variable "name" \{.*?default\s+= "(.*?)"', names, re.DOTALL)
    assert default is not None
    suffix = re.search(r'name\s+= "\$\{var\.name\}(-\w+)"', text_of("terraform/template.tf"))
    assert suffix is not None
    assert default[1] + suffix[1] == LAUNCH_TEMPLATE


def test_rights_and_boot_follow_the_tag_that_is_set() -> None:
    assert f'run_tag = "{RUN_TAG}"' in text_of("terraform/roles.tf")
    assert f"from_metadata tags/instance/{RUN_TAG})" in text_of("infra/boot.sh")


def test_the_template_and_the_code_wrap_the_boot_script_alike() -> None:
    made = boot_script(bucket="NAME", script="SCRIPT").splitlines()
    template = text_of("terraform/template.tf")
    assert f'"{made[0]}"' in template
    assert '"' + made[1].replace("NAME", "${aws_s3_bucket.this.id}") + '"' in template


def test_the_unit_gives_the_agent_all_that_it_needs() -> None:
    unit = text_of("infra/bamboo-agent.service")
    given = dict(re.findall(r"^Environment=(\w+)=(.*)$", unit, re.MULTILINE))
    # The rest comes with the run's settings from the bucket.
    given |= {"BAMBOO_RUN": "r1", "BAMBOO_REDIS_URL": "rediss://store.test", "BAMBOO_KEYS": "{}"}
    config = AgentConfig.from_environment(given)
    made = re.search(r"^RuntimeDirectory=(\w+)$", unit, re.MULTILINE)
    assert made is not None
    assert config.socket_dir == Path("/run") / made[1]
    assert "RuntimeDirectoryMode=0700" in unit
    assert "ExecStart=/opt/bamboo/venv/bin/bamboo agent\n" in unit
