"""An account for tests: a mock on loopback whose instances are processes, and a store over TLS; who
uses it has nothing of it but AWS_ENDPOINT_URL, a bucket, and the store."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile

from bamboo.coord.acl import user_name
from bamboo.ids import RunId
from bamboo.sites.account.account_ready import BOOT_FILES, BOUNDS
from bamboo.sites.account.instances import LAUNCH_TEMPLATE
from cloud.ec2.user_data import NAMES_FILE
from cloud.local.start import LocalCloud, start_local_cloud
from testbed.store_server import AdminStore, start_admin_store
from tests.infra.launcher_calls import document
from tests.jobs import SMALL, TEXT
from tests.launches.boots import BUCKET, FORKS
from tests.mock_account import ACCOUNT_CALLS, client_at, variables_of
from tests.sites.stack import Stack
from tests.tls_store import MUST_BE_THERE, SERVER, TlsStore, free_port, start_tls_store
from tests.warm import Process, begun_warm, warm

LONGEST_S = 200.0
REGION, ZONE = "us-east-1", "us-east-1a"
ROOT = Path(__file__).resolve().parents[2]
JOB = f"""{SMALL}[train]
steps = 60
batch = 8
microbatch = 2
[cluster]
stages = 2
redundancy = "eager"
transport = "tcp"
device = "virtual"
allow_idle_gpu = true
virtual_forward_ms = [5.0]
virtual_backward_ms = [10.0]
forming_timeout_s = 600.0
[cloud]
provider = "ec2"
zones = ["{ZONE}"]
image = "ami-00000000"
[checkpoint]
every_steps = 25
"""


class Account:
    """The account, its store, and a folder from which it is used."""

    def __init__(self, folder: Path, cloud: LocalCloud, store: TlsStore | AdminStore) -> None:
        self.folder, self.cloud, self.store = folder, cloud, store
        self.home = folder / "runs"
        at = (cloud.endpoint_url, cloud.token)
        self.s3, self.ec2, self.iam, self.secrets = (
            client_at(*at, service) for service in ("s3", "ec2", "iam", "secretsmanager")
        )
        self.s3.create_bucket(Bucket=BUCKET)
        read = {
            "constraints.txt": ROOT / "constraints.txt",
            NAMES_FILE: ROOT / "cloud/ec2" / NAMES_FILE,
        }
        for name in BOOT_FILES:
            body = read[name].read_bytes() if name in read else b"-"
            self.s3.put_object(Bucket=BUCKET, Key=f"boot/{name}", Body=body)
        bounds = json.dumps(document("run")).replace("bamboo-1", BUCKET)
        self.s3.put_object(Bucket=BUCKET, Key=BOUNDS, Body=bounds.encode())
        (folder / "text.txt").write_text(TEXT)
        (folder / "job.toml").write_text(JOB)
        (folder / "cloud.toml").write_text(f'[cloud]\nregion = "{REGION}"\nbucket = "{BUCKET}"\n')
        url = folder / "store-url"
        url.touch(mode=0o600)
        url.write_text(store.admin_url)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "BAMBOO_"))},
            **variables_of(*at),
            "BAMBOO_HOME": str(self.home),
            "BAMBOO_CONFIG": str(folder / "cloud.toml"),
            "BAMBOO_REDIS_URL": f"file:{url}",
            "PYTHONPATH": str(ROOT),
        }
        if isinstance(store, TlsStore):
            self.environment["BAMBOO_REDIS_CA"] = str(store.authority)

    def begin(self, *arguments: str) -> Process:
        with NamedTemporaryFile(dir=self.folder, prefix="said-", delete=False) as said:
            return warm().begin(
                ["cli.main", *arguments],
                folder=self.folder,
                environment=self.environment,
                output=said.fileno(),
                errors=said.fileno(),
                said=Path(said.name),
            )

    def stack(self) -> None:
        """What `terraform apply` makes and says, as far as a mock needs it."""
        image = self.ec2.register_image(Name="worker", RootDeviceName="/dev/xvda")["ImageId"]
        data = {"ImageId": image}
        self.ec2.create_launch_template(LaunchTemplateName=LAUNCH_TEMPLATE, LaunchTemplateData=data)
        asked = {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}
        subnets = self.ec2.describe_subnets(**asked)["Subnets"]
        outputs = {
            "region": REGION,
            "stack": "bamboo",
            "launch_template": LAUNCH_TEMPLATE,
            "bucket": BUCKET,
            "store_secret": f"arn:aws:secretsmanager:{REGION}:123456789012:secret:store",
            "subnets": {
                one["AvailabilityZone"]: one["SubnetId"]
                for one in subnets
                if one["AvailabilityZone"] == ZONE
            },
        }
        (self.folder / "cloud.toml").unlink()
        terraform = Stack(self.folder)
        body = {name: {"value": value} for name, value in outputs.items()}
        (self.folder / "outputs.json").write_text(json.dumps(body))
        self.environment["PATH"] = f"{terraform.bin}{os.pathsep}{os.environ['PATH']}"

    def without_disks(self) -> None:
        """The mock keeps the disks of its instances, whatever they were started with."""
        for volume in self.ec2.describe_volumes()["Volumes"]:
            self.ec2.delete_volume(VolumeId=volume["VolumeId"])

    def run(self, *arguments: str, code: int = 0) -> str:
        process = self.begin(*arguments)
        try:
            said, _ = process.communicate(timeout=LONGEST_S)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == code, said
        return said

    def live(self) -> list[str]:
        found = self.ec2.describe_instances()["Reservations"]
        return [
            one["InstanceId"]
            for reservation in found
            for one in reservation["Instances"]
            if one["State"]["Name"] in ("pending", "running")
        ]

    def starts(self, run: str) -> set[str]:
        """What the instances of a run start from."""
        found = self.s3.list_objects_v2(Bucket=BUCKET, Prefix=f"starts/{run}/")
        return {one["Key"].removeprefix(f"starts/{run}/") for one in found.get("Contents", ())}

    def password(self, run: str) -> str:
        """Of the run's login, while it has one."""
        text = self.secrets.get_secret_value(SecretId=f"bamboo/runs/{run}")["SecretString"]
        found = re.search(r"://bamboo-[\w-]+:(\w+)@", text)
        assert found is not None, text
        return found[1]

    def under_way(self, process: Process, run: str) -> bool:
        assert process.poll() is None, process.communicate()[0]
        return self.steps(run) > 5

    def steps(self, run: str) -> int:
        path = self.home / run / "metrics.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def role(self, run: str) -> str:
        """The name of the run's role; "": it has none."""
        found = self.iam.list_roles(PathPrefix=f"/bamboo/{REGION}/bamboo/{run}/")["Roles"]
        return str(found[0]["RoleName"]) if found else ""

    def nothing_left(self, run: str) -> None:
        assert self.live() == []
        assert self.role(run) == ""
        assert self.iam.list_instance_profiles()["InstanceProfiles"] == []
        templates = self.ec2.describe_launch_templates()["LaunchTemplates"]
        assert {one["LaunchTemplateName"] for one in templates} <= {LAUNCH_TEMPLATE}
        assert user_name(RunId(run)) not in self.store.users()
        assert self.starts(run) == set()
        kept = self.secrets.list_secrets(IncludePlannedDeletion=True)["SecretList"]
        assert [one["Name"] for one in kept if run in one["Name"]] == []


def a_store(folder: Path) -> TlsStore | AdminStore:
    """Over TLS where there is a server that speaks it, else the embedded one, with a login."""
    if shutil.which(SERVER) or os.environ.get(MUST_BE_THERE):
        return start_tls_store(folder)
    return start_admin_store(port=free_port())


def an_account(tmp_path: Path, *, forks: bool = True) -> Iterator[Account]:
    """A fixture's body: an account with its store, for as long as a test lasts. `forks`: its
    workers are no interpreters of their own."""
    store = a_store(tmp_path / "store")
    (tmp_path / "account").mkdir()
    (tmp_path / "user").mkdir()
    try:
        with begun_warm():
            cloud = start_local_cloud(
                run="account",
                run_dir=tmp_path / "account",
                preload=("tests.launches.boots",),
                agent_command=(sys.executable, "-m", "tests.launches.boots"),
                agent_environment={"PYTHONPATH": str(ROOT), FORKS: "1" if forks else ""},
                spot_usd_per_hour={"g4dn.xlarge": {ZONE: 0.2}},
                calls=ACCOUNT_CALLS,
            )
        try:
            yield Account(tmp_path / "user", cloud, store)
        finally:
            cloud.stop()
    finally:
        store.stop()
