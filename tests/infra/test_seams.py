"""What stands in terraform/ and infra/ as text agrees with what the code calls it."""

import re
from dataclasses import fields
from pathlib import Path

from bamboo.agent.config import AgentConfig
from bamboo.config.tree import CloudConfig
from bamboo.coord.address import CA_VARIABLE
from bamboo.ids import RunId
from bamboo.sites.account.instances import LAUNCH_TEMPLATE
from bamboo.sites.account.rented_check import NEVER_BEGAN_S, SILENT_S
from bamboo.sites.account.stack import OUTPUTS
from cloud.ec2.requests import EXPIRY_TAG, RUN_TAG
from cloud.ec2.user_data import agent_names, boot_script

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
    rights = text_of("terraform/policies/launcher.json.tftpl")
    assert f'"aws:ResourceTag/{RUN_TAG}"' in rights
    assert f'"aws:RequestTag/{EXPIRY_TAG}"' in rights
    assert f"from_metadata tags/instance/{RUN_TAG})" in text_of("infra/boot.sh")
    assert f"meta-data/tags/instance/{EXPIRY_TAG}" in text_of("infra/deadman.sh")


def test_the_template_and_the_code_wrap_the_boot_script_alike() -> None:
    made = boot_script(bucket="NAME", script="SCRIPT").splitlines()
    template = text_of("terraform/template.tf")
    assert f'"{made[0]}"' in template
    assert '"' + made[1].replace("NAME", "${aws_s3_bucket.this.id}") + '"' in template


def test_the_unit_gives_the_agent_all_that_it_needs() -> None:
    unit = text_of("infra/bamboo-agent.service")
    given = dict(re.findall(r"^Environment=(\w+)=(.*)$", unit, re.MULTILINE))
    # The rest comes with the run's settings from the bucket.
    assert re.findall(r"^EnvironmentFile=(.*)$", unit, re.MULTILINE) == ["/etc/bamboo/agent.env"]
    assert "/etc/bamboo" in text_of("infra/boot.sh")
    given |= {"BAMBOO_RUN": "r1", "BAMBOO_REDIS_URL": "rediss://store.test"}
    config = AgentConfig.from_environment(given)
    made = re.search(r"^RuntimeDirectory=(\w+)$", unit, re.MULTILINE)
    assert made is not None
    assert config.socket_dir == Path("/run") / made[1]
    assert "RuntimeDirectoryMode=0700" in unit
    assert "ExecStart=/opt/bamboo/venv/bin/python -I -m bamboo.loading cli.main agent\n" in unit


def test_no_unit_finds_its_commands_by_a_path_of_somebody_else_s() -> None:
    for name in ("agent", "deadman", "logs"):
        assert "\nEnvironment=PATH=/usr/local/sbin:" in text_of(f"infra/bamboo-{name}.service"), (
            name
        )


def test_an_agent_is_given_names_that_it_or_its_boot_reads() -> None:
    """And those that lead code are none of them: `tests/infra/test_boot.py`."""
    read = (
        text_of("infra/boot.sh")
        + text_of("bamboo/agent/config.py")
        + text_of("bamboo/wiring/__init__.py")
    )
    read += CA_VARIABLE
    assert [name for name in agent_names() if name not in read] == []


def test_the_agent_gives_up_before_the_dead_man_switch_does() -> None:
    """Then its worker leaves in order, and its last words reach the bucket."""
    limits = dict(
        re.findall(r"^(\w+_s)=\$\{\w+:-(\d+)\}", text_of("infra/deadman.sh"), re.MULTILINE)
    )
    assert set(limits) == {"over_s", "begin_s", "silent_s"}
    needed = AgentConfig(run=RunId("r1"), store_url="rediss://store.test", socket_dir=Path("/run"))
    assert int(limits["silent_s"]) > needed.store_away_s + needed.leave_s
    assert int(limits["begin_s"]) == NEVER_BEGAN_S, "a check is priced by it"
    assert int(limits["silent_s"]) == SILENT_S, "a check with longer steps is refused"
    assert int(limits["over_s"]) >= 2 * 60 + 60, "a notice of two minutes is the cloud's to end"


def test_switch_and_agent_mean_one_file() -> None:
    default = re.search(
        r"^heard=\$\{BAMBOO_HEARD_FILE:-(.*)\}$", text_of("infra/deadman.sh"), re.MULTILINE
    )
    assert default is not None
    assert f"Environment=BAMBOO_HEARD_FILE={default[1]}\n" in text_of("infra/bamboo-agent.service")


def test_all_that_the_boot_fetches_is_put_there() -> None:
    """By `aws_s3_object.boot`: every unit of ours, and the scripts that it names."""
    boot, bucket = text_of("infra/boot.sh"), text_of("terraform/bucket.tf")
    fetched = re.findall(r"^ *fetch boot/([\w.-]+) ", boot, re.MULTILINE)
    for unit, script in re.findall(r"^fetch_unit ([\w-]+) ([\w.-]+)$", boot, re.MULTILINE):
        fetched += [script, f"{unit}.service", f"{unit}.timer"]
    assert len(fetched) == 9
    for name in fetched:
        by_pattern = re.fullmatch(r"bamboo-.*\.(service|timer)", name)
        assert by_pattern or f'"{name}"' in bucket, name
        assert any((ROOT / where / name).exists() for where in ("", "infra", "cloud/ec2")), name


def test_the_stack_says_all_that_init_writes_down() -> None:
    said = set(re.findall(r'^output "(\w+)"', text_of("terraform/outputs.tf"), re.MULTILINE))
    assert {*OUTPUTS, "subnets"} <= said
    assert {"provider", *OUTPUTS, "subnets", "zones"} <= {f.name for f in fields(CloudConfig)}
