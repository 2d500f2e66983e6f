"""Names that no file can have are refused before any work is done for them."""

from pathlib import Path

import pytest

from bamboo.errors import InputError
from cli.new_file import refuse_to_overwrite


@pytest.mark.parametrize("force", [False, True])
def test_a_name_that_is_too_long_is_refused_in_one_line(tmp_path: Path, force: bool) -> None:
    with pytest.raises(InputError, match=r"cannot be written: File name too long; give another"):
        refuse_to_overwrite(tmp_path / ("a" * 300), force=force)


def test_a_new_name_is_free_and_a_folder_is_no_file(tmp_path: Path) -> None:
    refuse_to_overwrite(tmp_path / "new", force=False)
    with pytest.raises(InputError, match="no file that could be written"):
        refuse_to_overwrite(tmp_path, force=True)
