"""Whether anything of a run in an account is there, for whoever takes it up a moment after its
launcher died."""

from pathlib import Path

import pytest

from bamboo.errors import InputError
from bamboo.ids import InstanceId, RunId
from cli.account_site import AccountSite
from cloud.fake import FakeProvider
from cloud.fleet import Fleet
from cloud.provider import CloudUnavailable, Offer
from cloud.sight import OPEN_S, SHOWN_WITHIN_S
from tests.cloud.test_recorder import POOL

RUN = RunId("r1")


class Account(FakeProvider):
    """`dies`: the launcher's call is the last thing that is heard of it; `shows`: it lags not."""

    dies = False
    shows = False

    def launch(self, specs):
        answer = super().launch(specs)
        if self.dies:
            raise CloudUnavailable("nobody reads the answer")
        return answer

    def describe(self, run):
        shown = super().describe(run)
        return shown if self.shows else ()

    def terminate(self, instances):
        return super().terminate(instances) if self.shows else tuple(instances)


@pytest.fixture
def account() -> Account:
    return Account(listed=(Offer(pool=POOL, usd_per_hour=0.3),))


def site(account: Account, folder: Path, *, now_s: float) -> AccountSite:
    return AccountSite(
        run=RUN,
        region="us-east-1",
        bucket="b",
        store_url="secret:arn",
        provider=lambda: account,
        remove=lambda: None,
        intents=folder / "intents.jsonl",
        led=False,
        now=lambda: now_s,
    )


@pytest.mark.parametrize(("dies", "within_s"), [(True, OPEN_S), (False, SHOWN_WITHIN_S)])
def test_what_was_asked_for_a_moment_ago_may_be_there(account, tmp_path, dies, within_s) -> None:
    assert not site(account, tmp_path, now_s=1000.0).alive()
    fleet = Fleet(account, run=RUN, intents=tmp_path / "intents.jsonl", now=lambda: 1000.0)
    account.dies = dies
    try:
        fleet.ensure(1)
    except CloudUnavailable:
        assert dies
    assert site(account, tmp_path, now_s=1001.0).alive()
    assert not site(account, tmp_path, now_s=1001.0 + within_s).alive()
    account.shows = True
    assert site(account, tmp_path, now_s=5000.0).alive()
    there = site(account, tmp_path, now_s=1001.0)
    there.preempt(InstanceId("i-0001"), notice_s=0.0, cause="by hand")
    assert not there.alive(), "it is shown, and has ended"


def test_what_a_launcher_writes_just_now_is_left_alone(account, tmp_path) -> None:
    (tmp_path / "intents.jsonl").write_text('{"intent": "lau')
    assert not site(account, tmp_path, now_s=1000.0).alive()
    assert (tmp_path / "intents.jsonl").read_text() == '{"intent": "lau'


def test_an_instance_that_is_not_known_cannot_be_preempted(account, tmp_path) -> None:
    with pytest.raises(InputError, match="does not know instance i-9, or not yet"):
        site(account, tmp_path, now_s=1.0).preempt(InstanceId("i-9"), notice_s=0.0, cause="x")
