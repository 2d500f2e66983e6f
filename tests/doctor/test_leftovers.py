"""Logins and settings of runs that are over: named with the command that takes them away."""

from pathlib import Path

import pytest
from moto import mock_aws

from bamboo import wiring
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.coord.acl import user_name
from bamboo.coord.logins import make_login, runs_with_login
from bamboo.doctor.checks import Result
from bamboo.doctor.leftovers import Place, leftovers_check, places
from bamboo.ids import RunId
from bamboo.runs import lock, run_folder
from bamboo.sites.account.boot_files import AGENT_ENV
from bamboo.sites.account.ending import remove_left, runs_left
from testbed.store_server import start_admin_store
from tests.sites.test_boot_files import reference
from tests.tls_store import free_port

OVER, LED, THERE, MUTE, LOST, BARE, CUT = (
    RunId(f"{name}-1") for name in ("over", "led", "there", "mute", "lost", "bare", "cut")
)


class Secrets:
    """Those of a stack."""

    def runs(self) -> tuple[RunId, ...]:
        return (LED, LOST, MUTE, OVER, THERE)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    return tmp_path


def test_a_login_without_a_live_run_is_named_until_it_is_taken_away(home: Path) -> None:
    store = start_admin_store(port=free_port())
    try:
        for run in (OVER, LED, THERE):
            make_login(store.admin_url, run)
        assert set(runs_with_login(store.admin_url)) == {OVER, LED, THERE}
        own = make_login(store.admin_url, MUTE)
        of_run = store.admin_url.replace(f"admin:{store.password}", ":".join(own))
        assert runs_with_login(of_run) == (), "a run's own login learns of no other"
        objects = DirectoryStore(home / "bucket")
        for name in (
            f"starts/{OVER}/{AGENT_ENV}",
            f"starts/{OVER}/data/0",
            f"starts/{THERE}/{AGENT_ENV}",
            f"starts/{CUT}/data/0",
            f"starts/{CUT}/checked/metrics.jsonl",
            "starts/a b/agent.env",
        ):
            objects.put_new(name, b"-")
        folder = run_folder.create(home / "runs", LED)
        folder.resolved.write_text("{}")
        held = lock.take(folder)
        assert held is not None
        place = Place(region="r", stack="s", bucket="b", store=reference(home, store.admin_url))
        check = leftovers_check(
            (place,),
            bucket=lambda url, region: objects,
            secrets=lambda region, stack: Secrets(),
            roles=lambda region, stack: (OVER, LED, BARE),
            in_account=lambda region: (THERE,),
        )
        finding = check.ask()
        assert finding.result is Result.WARNING
        assert {row["run"]: row["what"] for row in finding.rows} == {
            OVER: ["login", "secret", "role", AGENT_ENV],
            MUTE: ["login", "secret"],
            LOST: ["secret"],
            BARE: ["role"],
            CUT: ["data"],
        }
        assert f"bamboo stop {OVER} --region r" in finding.lines[4]
        assert user_name(OVER) in store.users(), "a check changes nothing"
        held.close()
    finally:
        store.stop()


def test_what_runs_have_left_in_a_stack_is_taken_back_and_of_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their secrets are billed, and Terraform knows none of them."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        one, other = (wiring.run_secrets("eu-west-1", stack) for stack in ("one", "other"))
        for secrets in (one, other):
            secrets.put(OVER, "text")
        monkeypatch.setattr(wiring, "stack_in", lambda region: "one")
        notes: list[str] = []
        assert runs_left("eu-west-1", note=notes.append) == (OVER,)
        assert remove_left("eu-west-1", "one") == (OVER,)
        assert runs_left("eu-west-1", note=notes.append) == ()
        assert notes == []
        assert (one.runs(), other.runs()) == ((), (OVER,))


def test_without_an_account_there_is_nowhere_to_look(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAMBOO_CONFIG", str(home / "none.toml"))
    assert places() == ()
    (home / "cloud.toml").write_text('[cloud]\nregion = "eu-west-1"\nbucket = "b"\n')
    monkeypatch.setenv("BAMBOO_CONFIG", str(home / "cloud.toml"))
    monkeypatch.setenv("BAMBOO_REDIS_URL", "file:/somewhere")
    assert places() == (
        Place(region="eu-west-1", stack="bamboo", bucket="b", store="file:/somewhere"),
    )
