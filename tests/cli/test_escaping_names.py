"""Names that a person, an environment or another machine gives: none leads out of its folder."""

from pathlib import Path

import pytest

from bamboo.agent.config import AgentConfig
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.errors import InputError
from bamboo.ids import run_id
from bamboo.runs import run_folder
from bamboo.study.strategies import read_strategy
from cli.main import run

ESCAPES = [
    "..",
    ".",
    "../x",
    "a/../../x",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a\0b",
    "a\n",
    "\na",
    "a b",
    "~",
    "$HOME",
    "-rf",
    "A",
    "é",
    "٣",
    "x" * 64,
    "x" * 5000,
    "",
]


@pytest.mark.parametrize("name", ESCAPES)
def test_no_run_has_such_a_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run id"):
        run_id(name)
    environment = {
        "BAMBOO_RUN": name,
        "BAMBOO_REDIS_URL": "unix:///s",
        "BAMBOO_SOCKET_DIR": str(tmp_path),
    }
    with pytest.raises(InputError):
        AgentConfig.from_environment(environment)


@pytest.mark.parametrize("name", ESCAPES)
def test_no_run_is_found_outside_its_home(name: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    for folder in (home / "mine", home / "other", tmp_path / "x", tmp_path):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "resolved.json").write_text("{}")
    with pytest.raises(InputError):
        run_folder.find(home, name)


def test_a_command_with_such_a_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "home"))
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "resolved.json").write_text("{}")
    for verb in ("status", "stop", "logs", "attach", "resume"):
        assert run([verb, "../x"]) == 2
        assert "unknown run '../x'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a/../../x", "a//b", "./a", "", "a/", ".aside-1", "a/.aside-2"]
)
def test_no_object_lies_outside_its_store(name: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("outside")
    store = DirectoryStore(tmp_path / "store")
    for use in (
        lambda: store.get(name),
        lambda: store.put_new(name, b"x"),
        lambda: store.put_file(name, tmp_path / "x"),
        lambda: store.fetch(name, tmp_path / "y"),
    ):
        with pytest.raises(ValueError, match="is no name of an object"):
            use()
    if ".aside-" not in name:  # a stray is deleted by its name
        with pytest.raises(ValueError, match="is no name of an object"):
            store.delete(name)
    assert (tmp_path / "x").read_text() == "outside"
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize("name", ["x" * 5000, "missing", "."])
def test_a_strategy_that_is_no_file_is_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_strategy(tmp_path / name)
    assert "\n" not in str(caught.value)
