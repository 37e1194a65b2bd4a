"""What a configuration may say of keys and quotas, and that no key is ever shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sandboxd.model.quota import Quota
from sandboxd.settings import ApiKey
from tests.unit.test_settings import load, refusals


def test_a_server_without_keys_listens_on_loopback_only(tmp_path: Path) -> None:
    (text,) = refusals(tmp_path, '[server]\nhost = "0.0.0.0"')
    assert "server.api_keys" in text
    assert load(tmp_path, '[server]\nhost = "::1"').server.base_url() == "http://[::1]:8420"
    keyed = '[server]\nhost = "0.0.0.0"\napi_keys = [{name = "a", key = "k1"}]'
    assert load(tmp_path, keyed).server.api_keys == (ApiKey(name="a", key="k1"),)


def test_a_key_file_lies_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "trainer").write_text("s3cret\n")
    text = '[server]\napi_keys = [{name = "trainer", key_file = "trainer"}]'
    assert load(tmp_path, text).server.api_keys[0].key == "s3cret"


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ('{name = "a"}', "either `key_file` or `key`"),
        ('{name = "a", key = "x", key_file = "y"}', "either `key_file` or `key`"),
        ('{name = "a", key_file = "none"}', "cannot read"),
        ('{name = "a", key_file = "empty"}', "empty"),
        ('{name = "a", key = "x y"}', "printable ASCII"),
        ('{name = "a", key = "x"}, {name = "a", key = "y"}', "given twice"),
        ('{name = "a", key = "x"}, {name = "b", key = "x"}', "given twice"),
    ],
)
def test_keys_that_cannot_be_used_are_refused(tmp_path: Path, entries: str, words: str) -> None:
    (tmp_path / "empty").write_text("\n")
    (text,) = refusals(tmp_path, f"[server]\napi_keys = [{entries}]")
    assert words in text


def test_a_quota_bounds_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    text = '[server]\napi_keys = [{name = "a", key = "k", quota = {leases = 5, cpu = 2}}]'
    (key,) = load(tmp_path, text).server.api_keys
    assert key.quota == Quota(leases=5, cpu=2.0)
    (unbound,) = load(tmp_path, '[server]\napi_keys = [{name = "a", key = "k"}]').server.api_keys
    assert unbound.quota == Quota()


@pytest.mark.parametrize(
    "quota", ["leases = -1", "cpu = -0.5", "creates_per_minute = 0", "lease = 1", "leases = 1.5"]
)
def test_a_quota_that_makes_no_sense_is_refused(tmp_path: Path, quota: str) -> None:
    (text,) = refusals(tmp_path, f'[[server.api_keys]]\nname = "a"\nkey = "k"\nquota = {{{quota}}}')
    assert "server.api_keys[0].quota." in text


def test_no_key_is_ever_shown(tmp_path: Path) -> None:
    good = '[server]\napi_keys = [{name = "a", key = "topsecret"}]'
    assert "topsecret" not in repr(load(tmp_path, good))
    bad = '[server]\napi_keys = [{name = 5, key = "topsecret"}, {name = "b", key = "top secret"}]'
    assert not any(re.search("top.?secret", text) for text in refusals(tmp_path, bad))
    env = "[templates.t]\nimage = 'host'\nenv = {A = 5, B = 'topsecret', '=' = 'topsecret'}"
    assert not any("topsecret" in text for text in refusals(tmp_path, env))
