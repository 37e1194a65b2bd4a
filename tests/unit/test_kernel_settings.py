"""Settings of kernels that run before anybody leases their sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.model.template import KernelTerms
from sandboxd.settings import Settings, SettingsError, load_settings

_KERNEL = 'kernels = ["python3"]'


def load(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "sandboxd.toml"
    path.write_text(text)
    return load_settings(path, env={})


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        (f"kernels = {['k'] * 17}", ".kernels"),
        (f'{_KERNEL}\nkernel_preload = ["a b"]', ".kernel_preload[0]"),
        (f'{_KERNEL}\nkernel_preload = ["numpy; import os"]', ".kernel_preload[0]"),
        (f'{_KERNEL}\nkernel_preload = ["class"]', ".kernel_preload[0]"),
        ('kernel_preload = ["numpy"]', ""),
    ],
)
def test_what_is_no_kernel_or_no_module_is_refused_at_its_place(
    tmp_path: Path, lines: str, place: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, f'[templates.t]\nimage = "host"\n{lines}\n')
    (problem,) = map(str, caught.value.problems)
    assert f"sandboxd.toml: templates.t{place}: " in problem


def test_kernels_run_with_what_the_templates_commands_run_with(tmp_path: Path) -> None:
    text = """
    [templates.t]
    image = "host"
    env = {A = "1"}
    user = "agent"
    workdir = "/w"
    capabilities = "none"
    """
    assert load(tmp_path, text).templates["t"].spec.kernel_terms == KernelTerms()
    text += 'kernels = ["python3"]\n    kernel_preload = ["numpy", "xml.dom"]\n'
    spec = load(tmp_path, text).templates["t"].spec
    assert spec.kernels == ("python3",)
    assert spec.kernel_terms == KernelTerms(
        preload=("numpy", "xml.dom"),
        env=(("A", "1"),),
        workdir="/w",
        user="agent",
        capabilities="none",
    )
