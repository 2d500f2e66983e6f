"""The wheels of a job's own code: which ones instances install, and what is refused before anything
is paid for."""

import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.sites.account.wheelhouse import brought_versions, check_imports, kept_at, wheels_for
from bamboo.user_code.wheels import Wheels, check_wheels, install_wheels
from tests.jobs import tiny_job
from tests.wheels import build_wheel

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    return tmp_path / "runs"


def job(folder: Path, text: str, *sets: str) -> JobConfig:
    """A job whose requirements have this text, with its wheels in `house`."""
    (folder / "mine.py").write_text("", encoding="utf-8")
    (folder / "needs.txt").write_text(text, encoding="utf-8")
    (folder / "house").mkdir(exist_ok=True)
    own = ("cloud.provider=ec2", "train.optimizer=mine.py:make", "model.requirements=needs.txt")
    return tiny_job(folder, [*own, "model.wheelhouse=house", f"cloud.python='{HERE}'", *sets])


def found(folder: Path, text: str, *sets: str) -> Wheels:
    wheels = wheels_for(job(folder, text, *sets), pins={})
    assert wheels is not None
    return wheels


def refused(folder: Path, text: str, *sets: str) -> str:
    with pytest.raises(InputError) as caught:
        wheels_for(job(folder, text, *sets), pins={"numpy": "2.4.6"})
    said = str(caught.value)
    assert "model.requirements = 'needs.txt'" in said
    assert "\n" not in said
    return said


def test_wheels_are_kept_by_their_digest_and_installed_apart(tmp_path: Path) -> None:
    build_wheel(tmp_path / "house", "bands", source="WIDTH = 3\n", needs=["numpy>=2", "hoops"])
    build_wheel(tmp_path / "house", "hoops", "2.5")
    text = "# what it needs\nbands==1.0\nhoops==2.5 ; python_version >= '3.11'\nnumpy==2.4.6\n"
    wheels = found(tmp_path, text)
    assert wheels.versions == {"bands": "1.0", "hoops": "2.5"}
    assert found(tmp_path, text) == wheels
    kept = kept_at(wheels.digest)
    install_wheels(kept, wheels.digest, tmp_path / "there")
    code = "import bands, sys; sys.exit(bands.WIDTH)"
    alone = [sys.executable, "-S", "-c", code]
    done = subprocess.run(alone, env={"PYTHONPATH": str(tmp_path / "there")}, check=False)
    assert done.returncode == 3
    (kept / "bands-1.0-py3-none-any.whl").write_bytes(b"another")
    with pytest.raises(InputError, match=r"bands-1.0.*is not what it was"):
        check_wheels(kept, wheels.digest)


def test_what_has_no_wheel_for_the_instances_is_refused(tmp_path: Path) -> None:
    build_wheel(tmp_path / "house", "bands", tag="cp311-cp311-win_amd64")
    assert f"pins bands==1.0, which has no wheel for the instances, Python {HERE}" in refused(
        tmp_path, "bands==1.0\n"
    )
    arm = build_wheel(tmp_path / "house", "bands", tag="py3-none-manylinux2014_aarch64")
    graviton = 'cloud.instance_types=["g5g.xlarge"]'
    assert list(found(tmp_path, "bands==1.0\n", graviton).wheels) == [arm.name]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bands>=1.0\n", "line 1, 'bands>=1.0', is no pin; write NAME==VERSION"),
        ("-r other.txt\n", "line 1, '-r other.txt', is no pin"),
        ("bands @ https://there/x.whl\n", "is no pin"),
        ("numpy==1.26.4\n", "instances have 2.4.6 of it, which Bamboo brings"),
        ("bands==1.0 --hash=sha256:" + 64 * "0", "has other hashes of bands==1.0 than its wheel"),
        ("bands==1.0\n", "pins bands==1.0, which needs nowhere-to-be-found>1, and pins none"),
    ],
)
def test_what_instances_would_not_get_is_refused(tmp_path: Path, text: str, words: str) -> None:
    build_wheel(tmp_path / "house", "bands", needs=["nowhere-to-be-found>1"])
    assert words in refused(tmp_path, text)


def test_what_the_code_imports_is_there_as_it_is_here(tmp_path: Path) -> None:
    own = job(tmp_path, "")
    pinned = Wheels(python=HERE, wheels={}, versions={"bands": "1.0"})
    pins = {"numpy": "2.4.6"}
    same = {"bands": "1.0", "numpy": "2.4.6", "Click": "9"}
    check_imports(own, same, pinned, pins={**pins, "click": "9"})
    of_hf = replace(own, model=replace(own.model, model="hf:llama"))
    assert brought_versions(of_hf, {})["peft"] == metadata.version("peft")
    assert "transformers" not in brought_versions(own, {})
    for requires, words in (
        ({"bands": "1.1"}, "leads to bands 1.0, which instances get by it, and the model was"),
        (
            {"hoops": "2"},
            "pins no hoops, which the code imports and no instance has; write hoop",
        ),
        ({"numpy": "2.4.5"}, "leads to numpy 2.4.6, which instances install with Bamboo"),
    ):
        with pytest.raises(InputError) as caught:
            check_imports(own, requires, pinned, pins=pins)
        assert words in str(caught.value)
