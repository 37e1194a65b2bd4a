"""What a lease asks for, held against its template."""

from __future__ import annotations

import pytest

from sandboxd.leases.terms import LeaseWish, resolve
from sandboxd.model.template import BoxSpec, KernelTerms, Template

PLAIN = Template(
    name="plain",
    spec=BoxSpec(image="host"),
    env={"A": "1"},
    workdir="/w",
    user="agent",
    capabilities="none",
)
WARM = Template(
    name="warm",
    spec=BoxSpec(
        image="host",
        kernels=("python3", "bash"),
        kernel_terms=KernelTerms(preload=("numpy",), workdir="/workspace"),
    ),
)
TEMPLATES = {"plain": PLAIN, "warm": WARM}


@pytest.mark.parametrize("kernels", [None, (), ("bash",), ("bash", "python3")])
def test_kernels_that_the_template_has_are_no_reason_for_another_box(
    kernels: tuple[str, ...] | None,
) -> None:
    terms = resolve(LeaseWish(template="warm", kernels=kernels), TEMPLATES).terms
    assert terms.spec == WARM.spec
    assert terms.cold_because == ()


@pytest.mark.parametrize("kernels", [("r",), ("python3", "python3")])
def test_others_are_and_are_started_as_the_templates_own_would_be(kernels: tuple[str, ...]) -> None:
    terms = resolve(LeaseWish(template="warm", kernels=kernels), TEMPLATES).terms
    assert terms.spec.kernels == kernels
    assert terms.spec.kernel_terms == WARM.spec.kernel_terms
    assert terms.cold_because == ("kernels",)


def test_kernels_of_a_template_without_any_run_with_what_its_commands_run_with() -> None:
    wish = LeaseWish(template="plain", kernels=("python3",), env={"A": "2"}, workdir="/other")
    terms = resolve(wish, TEMPLATES).terms
    assert terms.spec.kernel_terms == KernelTerms(
        env=(("A", "1"),), workdir="/w", user="agent", capabilities="none"
    )


@pytest.mark.parametrize("kernels", [None, ("python3",)])
def test_another_image_starts_no_kernel_that_was_not_asked_for(
    kernels: tuple[str, ...] | None,
) -> None:
    wish = LeaseWish(template="warm", image="other", kernels=kernels)
    spec = resolve(wish, TEMPLATES).terms.spec
    assert spec.kernels == (kernels or ())
    assert spec.kernel_terms.preload == ()
