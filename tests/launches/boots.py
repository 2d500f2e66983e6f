"""Plays `infra/boot.sh` on an instance of a mock account: fetches the run's settings from the
bucket with the role's credentials, compares the wheel with its digest, and becomes the agent with
these settings alone in its environment.

Where FORKS is set, this very process goes on as the agent, and its workers are forks of the fork
server beside it, all in the same environment: new interpreters take longer than all the rest."""

import hashlib
import json
import os
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp

import boto3

from bamboo import loading

BUCKET = "stack-bucket"
FORKS = "TEST_FORKS_WORKERS"
OF_AGENT = "agent.json"
METADATA, ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_ENDPOINT_URL"


def metadata(path: str) -> str:
    base = os.environ[METADATA]
    seconds = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    asked = urllib.request.Request(f"{base}/latest/api/token", method="PUT", headers=seconds)
    with urllib.request.urlopen(asked, timeout=5) as answer:
        token = answer.read().decode()
    there = urllib.request.Request(
        f"{base}/latest/meta-data/{path}", headers={"X-aws-ec2-metadata-token": token}
    )
    with urllib.request.urlopen(there, timeout=5) as answer:
        return str(answer.read().decode())


def tagged_run() -> str:
    """From its tag, which the mock's metadata service has not."""
    ec2 = boto3.client("ec2", region_name="us-east-1")
    (reservation,) = ec2.describe_instances(InstanceIds=[metadata("instance-id")])["Reservations"]
    tags = {tag["Key"]: tag["Value"] for tag in reservation["Instances"][0]["Tags"]}
    return str(tags["bamboo:run"])


def main() -> None:
    s3, run = boto3.client("s3", region_name="us-east-1"), tagged_run()

    def fetched(name: str) -> bytes:
        found: bytes = s3.get_object(Bucket=BUCKET, Key=f"starts/{run}/{name}")["Body"].read()
        return found

    etc = Path(mkdtemp(prefix="bb-i-"))
    lines = fetched("agent.env").decode().splitlines()
    settings = {name: json.loads(value) for name, _, value in (li.partition("=") for li in lines)}
    if "BAMBOO_REDIS_CA" in settings:
        (etc / "store-ca.pem").write_bytes(fetched("store-ca.pem"))
        settings["BAMBOO_REDIS_CA"] = str(etc / "store-ca.pem")
    wheel = settings["BAMBOO_WHEEL"]
    content = s3.get_object(Bucket=BUCKET, Key=wheel)["Body"].read()
    assert hashlib.sha256(content).hexdigest() == wheel.split("/")[1]
    kept = {name: os.environ[name] for name in (METADATA, ENDPOINT, "PATH")}
    nobody = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    of_unit = {"BAMBOO_SOCKET_DIR": str(etc), "BAMBOO_LIFELINE_FD": "0"}
    environment = settings | kept | nobody | of_unit
    (etc / OF_AGENT).write_text(json.dumps(environment))
    if os.environ.get(FORKS):
        forks = {name: os.environ[name] for name in ("BAMBOO_ZYGOTE", "BAMBOO_LOG")}
        os.environ.clear()
        os.environ.update(environment | forks)
        os.environ["BAMBOO_WORKER_ENTRY"] = "tests.launches.boots:worker"
        sys.exit(loading.main(["cli.main", "agent"]))
    command = [sys.executable, "-I", "-m", "bamboo.loading", "cli.main", "agent"]
    os.execve(sys.executable, command, environment)


def worker(config: Mapping[str, str]) -> int:
    """A worker in its agent's environment, as a new interpreter would have it."""
    os.environ.clear()
    os.environ.update(json.loads((Path(config["socket_dir"]) / OF_AGENT).read_text()))
    from bamboo.wiring.worker import run

    return run(config)


if __name__ == "__main__":
    main()
