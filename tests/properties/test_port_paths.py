"""Laws of a port's door: nothing that a server inside says leads a browser out of its prefix, and
frames are followed however they arrive.
"""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

from hypothesis import given
from hypothesis import strategies as st

from sandboxd.api.ports.answered import outer_address, outer_cookie
from sandboxd.api.ports.borders import Borders
from sandboxd.api.ports.place import Place

HERE = Place(
    sandbox_id="sbx-1",
    port=8000,
    path="/a/b",
    prefix="/v1/sandboxes/sbx-1/ports/8000",
    scheme="http",
    host="sandboxes.example",
    by_token=False,
)
segments = st.sampled_from(
    ["..", ".", "%2e%2E", ".%2e", "", "a", "v1", "pools", "\\..", "a\\b", ":"]
)
paths = st.lists(segments, max_size=12).map(lambda parts: "/" + "/".join(parts))
origins = st.sampled_from(["", "http://localhost:8000", "http://sandboxes.example"])


def as_a_browser_goes(address: str) -> str:
    """The path that a browser asks for, which was sent there from the server's page."""
    plain = address.replace("\\", "/").replace("%2e", ".").replace("%2E", ".")
    return urlsplit(urljoin(f"{HERE.origin}{HERE.prefix}/a/b", plain)).path


@given(origins, paths)
def test_an_address_of_the_servers_own_stays_below_the_prefix(origin: str, path: str) -> None:
    if origin in {"", "http:"} and path.replace("\\", "/").startswith("//"):
        return  # another host's
    assert as_a_browser_goes(outer_address(origin + path, HERE)).startswith(f"{HERE.prefix}/")


@given(paths)
def test_a_relative_address_stays_below_the_prefix(path: str) -> None:
    relative = path.lstrip("/\\")
    passed_on = outer_address(relative, HERE)
    if ":" not in relative.split("/")[0]:  # else a scheme of its own
        assert as_a_browser_goes(passed_on).startswith(f"{HERE.prefix}/")


@given(paths)
def test_a_cookies_path_stays_below_the_prefix(path: str) -> None:
    kept = outer_cookie(f"a=b; Path={path}", HERE)
    assert as_a_browser_goes(kept.partition("Path=")[2]).startswith(f"{HERE.prefix}/")


@given(
    st.lists(st.sampled_from([0, 1, 125, 126, 127, 70_000]), min_size=1, max_size=6),
    st.lists(st.integers(1, 80_000), max_size=30),
)
def test_frames_are_followed_however_they_are_cut(sizes: list[int], cuts: list[int]) -> None:
    stream, ends = b"", {0}
    for size in sizes:
        stream += _head(size) + bytes(size)
        ends.add(len(stream))
    borders, place = Borders(), 0
    for cut in [*cuts, len(stream)]:
        borders.feed(stream[place : place + cut])
        place = min(place + cut, len(stream))
        assert borders.at_border is (place in ends)
    assert borders.at_border and not borders.closed


def _head(size: int) -> bytes:
    if size < 126:
        return bytes((0x82, size))
    width = 2 if size < 1 << 16 else 8
    return bytes((0x82, 126 if width == 2 else 127)) + size.to_bytes(width, "big")
