"""A script of the threat model that could not look says so: none calls that safe, or a find."""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from testbed.store_server import AdminStore, start_admin_store
from tests.security import laid_names, local_cloud, open_files, run_login, worker_ports
from tests.tls_store import free_port

Main = Callable[[Sequence[str]], int]


@pytest.mark.parametrize(
    ("main", "words", "says"),
    [
        (open_files.main, [], "FOLDER"),
        (open_files.main, ["{absent}"], "is not there; nothing was looked at"),
        (local_cloud.main, [], "url"),
        (local_cloud.main, ["http://127.0.0.1:{port}"], "nothing was tried"),
        (worker_ports.main, ["127.0.0.1:{port}"], "nothing was tried"),
        (run_login.main, [], "url, other"),
        (run_login.main, ["redis://127.0.0.1:{port}", "other"], "nothing was tried"),
        (run_login.main, ["nowhere", "other"], "nothing was tried"),
        (laid_names.main, ["{absent}"], "nothing was tried"),
        (laid_names.main, ["/bin/true"], "/bin/true trace synth writes no file"),
    ],
)
def test_what_could_not_be_tried_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], main: Main, words: list[str], says: str
) -> None:
    named = {"absent": str(tmp_path / "absent"), "port": str(free_port())}
    with pytest.raises(SystemExit) as ended:
        main([word.format(**named) for word in words])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_a_login_that_is_refused_has_done_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    store: AdminStore = start_admin_store(port=free_port())
    try:
        url = store.admin_url.replace(store.password, "another")
        with pytest.raises(SystemExit) as ended:
            run_login.main([url, "other"])
    finally:
        store.stop()
    assert ended.value.code == 2
    assert "nothing was tried" in capsys.readouterr().err


def test_more_connections_than_may_be_opened_are_refused_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (100, 1024))
    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.raises(SystemExit):
        worker_ports.main([f"127.0.0.1:{listening.getsockname()[1]}"])
    assert "take --connections of 960 at most" in capsys.readouterr().err
