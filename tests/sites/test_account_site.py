"""An account as a run's site: whether anything of the run is there, also for whoever takes it up a
moment after its launcher died; what it takes away, and what it tells."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bamboo.errors import InputError
from bamboo.ids import InstanceId, RunId
from bamboo.sites.account.account_site import AccountSite
from cloud.ending import StillLive
from cloud.fake import FakeProvider
from cloud.fleet import Fleet
from cloud.provider import CloudUnavailable, LaunchSpec, Offer
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


def site(
    provider: FakeProvider,
    folder: Path = Path("nowhere"),
    *,
    led: bool = False,
    now_s: float = 0.0,
    remove: Callable[[], None] = lambda: None,
    put: Callable[[], None] | None = None,
) -> AccountSite:
    return AccountSite(
        run=RUN,
        region="us-east-1",
        bucket="b",
        store_url="secret:arn",
        provider=lambda: provider,
        remove=remove,
        intents=folder / "intents.jsonl",
        led=led,
        put=put,
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
    with pytest.raises(InputError, match="knows no instance i-9 of the run, or not yet"):
        site(account, tmp_path, now_s=1.0).preempt(InstanceId("i-9"), notice_s=0.0, cause="x")


def test_an_account_lives_while_it_is_led_or_has_an_instance_of_the_run() -> None:
    provider = FakeProvider(listed=(Offer(pool=POOL, usd_per_hour=0.3),))
    assert site(provider, led=True).alive()
    there = site(provider, led=False)
    assert not there.alive()
    spec = LaunchSpec(run=RUN, pool=POOL, count=1, token="t", expires_at_s=0)
    (one,) = provider.launch([spec]).launched
    assert there.alive()
    there.preempt(one.instance, notice_s=0.0, cause="by hand")
    assert not there.alive()
    there.hold(alone_s=1.0)
    assert there.alive()


def test_a_start_that_finds_its_run_taken_takes_nothing_away() -> None:
    """Of two launches of one id the store has one: the other's end is none of its own things."""
    done: list[str] = []
    there = site(
        FakeProvider(listed=()),
        led=True,
        remove=lambda: done.append("removed"),
        put=lambda: done.append("put"),
    )
    there.stop()
    assert done == []
    there.prepare()
    there.prepare()
    there.stop()
    assert done == ["put", "removed"]


def test_only_the_cloud_gives_notice() -> None:
    with pytest.raises(InputError, match="--notice 5: in an account only the cloud gives notice"):
        site(FakeProvider(listed=()), led=True).preempt(
            InstanceId("i-1"), notice_s=5.0, cause="by hand"
        )


def test_what_stands_in_the_endpoint_is_no_secret() -> None:
    there = site(FakeProvider(listed=()), led=True)
    assert there.record() == {"account": {"region": "us-east-1", "bucket": "b"}}
    said = str(there.not_ended(StillLive(RUN, "i-1")))
    assert "i-1" in said
    assert "bamboo stop r1 --region us-east-1" in said
