"""What the nodes of a job compute on: settled by its instance types, and refused in one line."""

from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.config.catalogue import load_catalogue
from bamboo.config.load import checked
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.ids import RunId
from bamboo.planner.plans.candidates import JobFitsNowhere
from bamboo.planner.prices.catalogue import Catalogue
from bamboo.planner.profiles.workload import Saving, saved
from bamboo.study.devices import on_cards, with_device
from bamboo.study.planning import Planned, plan_job
from bamboo.study.workload import most_bytes
from tests.jobs import tiny_job
from tests.study.facts import seen, trained

CATALOGUE = load_catalogue()


def asked(folder: Path, *overrides: str, catalogue: Catalogue = CATALOGUE) -> JobConfig:
    """The job with its device; in an account unless an override says otherwise."""
    here = "cloud.provider=ec2"
    return with_device(tiny_job(folder, [here, *overrides]), catalogue)


def refused(folder: Path, *overrides: str) -> str:
    with pytest.raises(InputError) as found:
        asked(folder, *overrides)
    assert "\n" not in str(found.value)
    assert found.value.exit_code == 2
    return str(found.value)


def test_in_an_account_the_type_decides_and_here_it_is_the_cpu(tmp_path: Path) -> None:
    there = asked(tmp_path)
    assert there.cluster.device == "cuda"
    assert on_cards(there)
    here = asked(tmp_path, "cloud.provider=local")
    assert here.cluster.device == "cpu"
    assert not on_cards(here)
    wanted = asked(tmp_path, "cloud.provider=local", "cluster.device=cuda")
    assert wanted.cluster.device == "cuda"
    assert not on_cards(wanted), "the card is that of this machine"
    assert with_device(there, CATALOGUE) == there
    bare = {name: replace(kind, gpus=0) for name, kind in CATALOGUE.types.items()}
    without = asked(tmp_path, catalogue=replace(CATALOGUE, types=bare))
    assert without.cluster.device == "cpu"


def test_the_resolved_job_says_which(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, ["cloud.provider=ec2"])
    assert job.cluster.device == "auto"
    planned = plan_job(job, seen(job), run=RunId("r"), now_s=0.0)
    assert planned.job.cluster.device == "cuda"
    assert checked(planned.job) == planned.job


def test_moments_of_replicas_go_to_the_host_of_a_gpu_that_is_too_small(tmp_path: Path) -> None:
    def planned(parameters: int, *overrides: str) -> Planned:
        job = tiny_job(tmp_path, ["cloud.provider=ec2", "cluster.redundancy=stash", *overrides])
        found = seen(job)
        larger = trained(parameters) | {"activation_bytes": 2**24}
        layers = [one | larger for one in found["layers"]]
        return plan_job(job, found | {"layers": layers}, run=RunId("r"), now_s=0.0)

    def most(one: Planned) -> int:
        return max(stage.total for stage in one.plan.memory)

    small = planned(50_000_000)
    assert small.job.cluster.replica_moments == "device"
    between = round(50_000_000 * small.plan.instance_type.gpu_memory_bytes / most(small) * 1.1)
    large = planned(between)
    cluster = large.job.cluster
    assert (cluster.replica_moments, cluster.recompute) == ("host", "off")
    assert most(large) <= large.plan.instance_type.gpu_memory_bytes
    assert large.saving_why.startswith("replica_moments auto is host: a node needs ")
    assert large.saving_why.endswith("Replicas' steps take longer so.")
    assert large.workload.steps_s > planned(50_000_000).workload.steps_s
    # What the job says itself counts on both sides.
    again = planned(between, "cluster.recompute=layer")
    own = saved(again.workload, Saving(recompute=True)).layers
    without = most_bytes(own, again.strategy.placement.cut, 1, job=again.job)
    assert f", and {without / 2**30:.2f} GiB without; " in again.saving_why
    asked = planned(50_000_000, "cluster.replica_moments=host")
    assert (asked.job.cluster.replica_moments, asked.saving_why) == (
        "host",
        "recompute auto is off: the plan fits one T4 without.",
    )
    with pytest.raises(JobFitsNowhere, match="replica_moments host"):
        planned(between, "cluster.replica_moments=device", "cluster.recompute=off")


@pytest.mark.parametrize("device", ["cpu", "virtual"])
def test_a_gpu_that_would_be_paid_and_idle_is_refused_unless_allowed(
    device: str, tmp_path: Path
) -> None:
    words = refused(tmp_path, f"cluster.device={device}")
    assert f"cluster.device = '{device}': leaves the T4 of a g4dn.xlarge idle" in words
    assert words.endswith('take "auto", or set cluster.allow_idle_gpu = true')
    allowed = asked(tmp_path, f"cluster.device={device}", "cluster.allow_idle_gpu=true")
    assert allowed.cluster.device == device
    assert not on_cards(allowed)


def test_cards_of_two_kinds_are_refused_and_two_types_with_one_kind_are_not(
    tmp_path: Path,
) -> None:
    words = refused(tmp_path, 'cloud.instance_types=["g5.xlarge","g4dn.xlarge"]')
    assert "has cards of 2 kinds, A10G (sm_86) and T4 (sm_75), which compute other bits" in words
    assert "no tolerance can be set" in words
    assert "`verify` compares every bit" in words
    assert words.endswith("name types of one kind of card, or launch a run for each kind")
    alike = asked(tmp_path, 'cloud.instance_types=["g5.xlarge","g5.2xlarge"]')
    assert alike.cluster.device == "cuda"


def test_a_card_without_bf16_or_without_kernels_of_torch_is_refused(tmp_path: Path) -> None:
    words = refused(tmp_path, "train.precision=bf16")
    assert words.startswith("train.precision = 'bf16' begins at sm_80 and one T4 is sm_75; take")
    ampere = asked(tmp_path, "train.precision=bf16", 'cloud.instance_types=["g5.xlarge"]')
    assert ampere.cluster.device == "cuda"
    here = asked(tmp_path, "train.precision=bf16", "cloud.provider=local")
    assert here.cluster.device == "cpu", "which has bf16"
    words = refused(tmp_path, 'cloud.instance_types=["p3.2xlarge"]')
    assert "has one V100 (sm_70), for which torch has no kernels: its builds begin at sm_" in words
