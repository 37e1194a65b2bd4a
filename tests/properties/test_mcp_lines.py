"""What an MCP server writes is read alike, however it is cut."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from sandboxd.mcp.lines import LineReader
from sandboxd.mcp.messages import LARGEST_BYTES

_MESSAGES = st.lists(
    st.one_of(
        st.builds(lambda n: {"jsonrpc": "2.0", "id": n, "result": {"n": n}}, st.integers(0, 99)),
        st.builds(lambda t: {"jsonrpc": "2.0", "method": t}, st.text(max_size=20)),
    ),
    max_size=8,
)
_JUNK = st.sampled_from([b"", b"hello", b"{", b"[]", b"1", b"\xff\xfe", b'{"jsonrpc": "1.0"}'])
_ENDS = st.sampled_from([b"\n", b"\r\n"])


@given(messages=_MESSAGES, junk=st.lists(_JUNK, max_size=8), end=_ENDS, data=st.data())
def test_every_message_is_read_once_and_junk_is_none(
    messages: list[dict[str, object]], junk: list[bytes], end: bytes, data: st.DataObject
) -> None:
    lines = [json.dumps(message, ensure_ascii=False).encode() for message in messages]
    for piece in junk:
        lines.insert(data.draw(st.integers(0, len(lines))), piece)
    whole = b"".join(line + end for line in lines)
    reader, found, place = LineReader(), [], 0
    while place < len(whole):
        size = data.draw(st.integers(1, len(whole) - place))
        found += reader.feed(whole[place : place + size])
        place += size
    assert found == messages
    assert reader.lost == 0


def test_a_line_that_is_too_long_is_lost_alone() -> None:
    reader = LineReader()
    message = b'{"jsonrpc": "2.0", "id": 1, "result": {}}\n'
    assert reader.feed(b"x" * (LARGEST_BYTES + 1)) == []
    assert reader.feed(b"more\n" + message) == [json.loads(message)]
    assert reader.lost == 1
