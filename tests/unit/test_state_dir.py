"""A state directory's installation: by chance, or by the name that it is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.errors import SandboxdError
from sandboxd.settings import SettingsError, load_settings
from sandboxd.state_dir import hold_state_dir
from sandboxd.wire.codes import ErrorCode


def test_an_installation_has_a_name_by_chance_and_keeps_it(tmp_path: Path) -> None:
    with hold_state_dir(tmp_path / "a") as first, hold_state_dir(tmp_path / "b") as other:
        assert first.installation != other.installation
    with hold_state_dir(tmp_path / "a") as again:
        assert again.installation == first.installation


def test_an_installation_that_is_given_a_name_has_it(tmp_path: Path) -> None:
    with hold_state_dir(tmp_path, installation="0123456789ab") as opened:
        assert opened.installation == "0123456789ab"
    with hold_state_dir(tmp_path) as again:
        assert again.installation == "0123456789ab"


def test_a_directory_of_another_name_is_refused_with_the_mend(tmp_path: Path) -> None:
    with hold_state_dir(tmp_path, installation="0123456789ab"):
        pass
    with (
        pytest.raises(SandboxdError, match="give another --state-dir") as refused,
        hold_state_dir(tmp_path, installation="ba9876543210"),
    ):
        pass
    assert refused.value.code is ErrorCode.BAD_REQUEST
    assert (tmp_path / "installation").read_text() == "0123456789ab"


@pytest.mark.parametrize("name", ["short", "With-Letters", "x" * 33])
def test_a_name_that_no_label_and_no_object_could_carry_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="8 to 32 lower-case letters and digits"):
        load_settings(None, env={"SANDBOXD_INSTALLATION": name})
