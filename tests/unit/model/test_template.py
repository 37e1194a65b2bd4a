"""Which boxes may share stock."""

from __future__ import annotations

from dataclasses import replace

from sandboxd.model.template import BoxSpec, KernelTerms, Setup

PLAIN = BoxSpec(image="host")
WARM = replace(PLAIN, kernels=("python3",), kernel_terms=KernelTerms(workdir="/workspace"))


def test_whatever_kernels_run_with_makes_other_stock() -> None:
    terms = WARM.kernel_terms
    others = [
        PLAIN,
        replace(WARM, kernels=("python3", "python3")),
        replace(WARM, kernels=("bash",)),
        replace(WARM, kernel_terms=replace(terms, preload=("numpy",))),
        replace(WARM, kernel_terms=replace(terms, env=(("A", "1"),))),
        replace(WARM, kernel_terms=replace(terms, workdir="/elsewhere")),
        replace(WARM, kernel_terms=replace(terms, user="agent")),
        replace(WARM, kernel_terms=replace(terms, capabilities="none")),
    ]
    prints = {spec.fingerprint() for spec in (WARM, *others)}
    assert len(prints) == len(others) + 1
    assert replace(WARM).fingerprint() == WARM.fingerprint()


def test_a_box_is_prepared_that_has_commands_to_run_or_kernels_to_start() -> None:
    assert not PLAIN.prepared
    assert WARM.prepared
    assert replace(PLAIN, setup=Setup(commands=("true",))).prepared


def test_no_variable_of_a_kernel_shows() -> None:
    terms = replace(WARM.kernel_terms, env=(("KEY", "hidden"),))
    assert "hidden" not in repr(replace(WARM, kernel_terms=terms))
