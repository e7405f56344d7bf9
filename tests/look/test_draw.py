"""Pictures of attention: what the terminal shows and what the PNG holds."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from regard.look.draw import BLOCKS, PLAIN, bare_png, fill, picture, text_map, wide

WEIGHTS = np.array([[1.0, 0.0, 0.0], [0.25, 0.5, 0.25]])


@pytest.mark.parametrize(("plain", "ramp"), [(False, BLOCKS), (True, PLAIN)])
def test_text_map(plain: bool, ramp: str) -> None:
    head, *rows = text_map(WEIGHTS, ["a", "b"], ["x", " ", "z"], plain=plain).split("\n")
    assert head == "    x _ z"
    assert rows[0] == f"a   {ramp[8]} {ramp[0]} {ramp[0]}"
    assert rows[1] == f"b   {ramp[2]} {ramp[4]} {ramp[2]}"


def test_columns_line_up_whatever_the_tokens_are() -> None:
    tokens = ["\u5e74", "e\u0301", "\n", "word"]
    lines = text_map(np.eye(4), tokens, tokens, plain=True).split("\n")
    places = {len(line[: line.index(PLAIN[8])]) for line in lines[1:]}
    assert len(places) == 4 and "\n" not in lines[0].replace("\n", "") and wide("\u5e74e\u0301") == 3
    assert fill("\u5e74", 4) == "\u5e74  "


def test_weights_must_match_the_tokens() -> None:
    with pytest.raises(ValueError, match="2 x 2 tokens meet weights of"):
        text_map(WEIGHTS, ["a", "b"], ["x", "y"])


def read_grey(raw: bytes) -> np.ndarray:
    """A PNG of grey bytes without filters, decoded from its definition."""
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(raw):
        size, kind = struct.unpack(">I4s", raw[at : at + 8])
        body = raw[at + 8 : at + 8 + size]
        assert struct.unpack(">I", raw[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + size
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, colour) == (8, 0)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    return rows[:, 1:]


def test_bare_png_holds_the_weights() -> None:
    image = read_grey(bare_png(WEIGHTS, cell=4))
    assert image.shape == (8, 12)
    assert (image[2::4, 2::4] == (255 - WEIGHTS * 255).astype(np.uint8)).all()


def test_a_picture_is_always_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a", "b"], ["x", "\u5e74", "z"]  # a character that the plot's font does not have
    plotted = picture(WEIGHTS, *names, tmp_path / "new" / "plot.png", "title").read_bytes()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("regard.look.draw.find_spec", lambda name: None)
    bare = picture(WEIGHTS, *names, tmp_path / "bare.png").read_bytes()
    assert plotted[:8] == bare[:8] == b"\x89PNG\r\n\x1a\n"
    assert read_grey(bare).shape == (32, 48)
