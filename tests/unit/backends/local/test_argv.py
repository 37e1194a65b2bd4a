"""What bubblewrap is told: the parts that isolation hangs on, in their order."""

from __future__ import annotations

from dataclasses import replace

from sandboxd.backends.local.launching.argv import LaunchPlan, Overlay, bwrap_argv

PLAN = LaunchPlan(
    bwrap="/b/bwrap",
    guest="/b/guest",
    own_root="/d/root",
    overlays=[Overlay(sources=["/usr"], upper="/d/upper-usr", work="/d/work-usr", inside="/usr")],
    read_only=[("/srv/a/.venv", "/srv/a/.venv")],
    shared="/d/run",
    shm_bytes=1024,
    userns_fd=5,
    seccomp_fd=6,
    info_fd=7,
    status_fd=8,
    block_fd=9,
)


def has(words: list[str], *wanted: str) -> bool:
    return any(tuple(words[at : at + len(wanted)]) == wanted for at in range(len(words)))


def test_every_namespace_is_its_own_and_the_guest_is_the_first_process() -> None:
    words = bwrap_argv(PLAN)
    assert {"--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"} <= set(words)
    assert "--as-pid-1" in words
    assert "--die-with-parent" not in words
    assert words[words.index("--") + 1 :] == [
        *("/run/sandbox-guest", "serve", "--socket", "/run/guest/s.sock")
    ]


def test_roots_namespace_is_entered_with_few_capabilities() -> None:
    words = bwrap_argv(PLAN)
    assert has(words, "--userns", "5")
    assert words.index("--cap-drop") < words.index("--cap-add")
    assert not {"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_NET_ADMIN", "CAP_MKNOD"} & set(words)


def test_an_ordinary_user_is_root_inside_without_any_capability() -> None:
    words = bwrap_argv(replace(PLAN, userns_fd=None))
    assert has(words, "--unshare-user", "--uid", "0", "--gid", "0")
    assert has(words, "--cap-drop", "ALL")
    assert "--cap-add" not in words


def test_switches_of_the_kernel_are_read_only_after_proc_is_there() -> None:
    words = bwrap_argv(PLAN)
    assert has(words, "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys")


def test_no_memory_can_be_filled_through_dev() -> None:
    words = bwrap_argv(PLAN)
    assert has(words, "--size", "1024", "--tmpfs", "/dev/shm", "--remount-ro", "/dev")


def test_layers_of_a_root_are_named_from_the_lowest_up() -> None:
    layer = Overlay(sources=["/s", "/i"], upper="/d/upper-top", work="/d/work-top", inside="/")
    words = bwrap_argv(replace(PLAN, own_root=None, overlays=[layer]))
    assert "/d/root" not in words
    assert has(
        words,
        *("--overlay-src", "/s", "--overlay-src", "/i"),
        *("--overlay", "/d/upper-top", "/d/work-top", "/"),
    )


def test_nothing_is_made_inside_but_by_mounting() -> None:
    assert not {"--dir", "--symlink", "--file"} & set(bwrap_argv(PLAN))
