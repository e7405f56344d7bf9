"""Kernels in C for what PyTorch has none: attention of many rows that ask little each, the words of beams,
one row times a matrix.

`kernels.c` is compiled when regard is installed, once for each kind of processor (see pyproject.toml), which
needs no more than a C compiler. Where there was none, or the processor is of another kind, everything works
as well, by PyTorch alone, only slower; `regard doctor` says which it is. During a call other threads run.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from ctypes import CDLL, c_float, c_long, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KINDS = {"AVX512": "v4", "AVX2": "v3"}  # what torch calls a processor, and what the compiler does
MOST = 512  # keys of a query, as in kernels.c
PANEL = 32  # rows of a matrix that stand together, as there
Three = c_long * 3
GIVEN: dict[str, list[Any]] = {
    "attend_few": [*[c_void_p] * 5, c_float, *[c_long] * 7, *[Three] * 4],
    "place_rows": [*[c_void_p] * 3, *[c_long] * 4, *[Three] * 2],
    "move_rows": [*[c_void_p] * 3, *[c_long] * 3, Three],
    "best_words": [*[c_void_p] * 3, *[c_long] * 5, *[c_void_p] * 3],
    "row_times": [*[c_void_p] * 4, *[c_long] * 2],
    "row_of_bytes": [*[c_void_p] * 7, *[c_long] * 2],
    "rows_times": [*[c_void_p] * 4, *[c_long] * 3],
    "norm_rows": [*[c_void_p] * 4, c_float, *[c_long] * 3],
}


@cache
def library() -> CDLL | None:
    """What was compiled for this processor, if it was."""
    return load(KINDS.get(torch.backends.cpu.get_cpu_capability()))


def load(kind: str | None) -> CDLL | None:
    """What was compiled for a kind of processor, if it was."""
    path = Path(__file__).parent / f"kernels_{kind}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if kind is None or not path.is_file():
        return None
    try:
        found = CDLL(str(path))
        for name, given in GIVEN.items():
            getattr(found, name).argtypes, getattr(found, name).restype = given, None
    except (OSError, AttributeError):  # compiled for another system, or from an older file
        return None
    return found


def can_attend(q_BHLK: Tensor, k_BGMK: Tensor, v_BGMK: Tensor) -> bool:
    """Whether `attend_few` takes these: float32, at most 512 keys."""
    return k_BGMK.shape[2] <= MOST and _numbers(q_BHLK, k_BGMK, v_BGMK)


def attend_few(q_BHLK: Tensor, k_BGMK: Tensor, v_BGMK: Tensor, scale: float, allow: Tensor | None) -> Tensor:
    """softmax(scale q k^T) v over the keys that are allowed, and only these are read."""
    (B, H, L, K), (G, M), V = q_BHLK.shape, k_BGMK.shape[1:3], v_BGMK.shape[3]
    y_BLHV = q_BHLK.new_empty(B, L, H, V)  # heads side by side, as the next matrix reads them
    if allow is not None and (allow.stride(3) != 1 or allow.shape[3] != M):
        allow = allow.expand(-1, -1, -1, M).contiguous()
    given = (q_BHLK, k_BGMK, v_BGMK)
    where, steps = [t.data_ptr() for t in given], [Three(*t.stride()[:3]) for t in given]
    mask, step = None, Three()
    if allow is not None:  # one that says the same to all is not written out
        mask = allow.data_ptr()
        step = Three(
            *(0 if n == 1 else by for n, by in zip(allow.shape[:3], allow.stride()[:3], strict=True))
        )
    _kernel("attend_few")(*where, mask, y_BLHV.data_ptr(), scale, B, H, G, L, M, K, V, *steps, step)
    return y_BLHV.transpose(1, 2)


def can_place(room_BGMK: Tensor, new_BNGK: Tensor) -> bool:
    """Whether `place_rows` takes these: numbers of one kind, from which nothing is learned."""
    return room_BGMK.dtype == new_BNGK.dtype and _bytes(room_BGMK, new_BNGK)


def place_rows(room_BGMK: Tensor, new_BNGK: Tensor, place_BN: Tensor) -> None:
    """room[b, g, place[b, n]] = new[b, n, g]."""
    (B, N, G, K), place_BN = new_BNGK.shape, place_BN.contiguous()
    where = room_BGMK.data_ptr(), new_BNGK.data_ptr(), place_BN.data_ptr()
    _kernel("place_rows")(
        *where, B, N, G, K * room_BGMK.element_size(), _in_bytes(room_BGMK), _in_bytes(new_BNGK)
    )


def can_move(room_BGMK: Tensor) -> bool:
    """Whether `move_rows` takes it: nothing is learned from it, and columns stand one after the other."""
    return _bytes(room_BGMK) and room_BGMK.stride(2) == room_BGMK.shape[3]


def move_rows(room_BGMK: Tensor, to_N: Tensor, from_N: Tensor, columns: int) -> None:
    """room[to, :, :columns] = room[from, :, :columns]; no row may be both written and read."""
    size = columns * room_BGMK.shape[3] * room_BGMK.element_size()
    to_N, from_N = to_N.contiguous(), from_N.contiguous()
    where = room_BGMK.data_ptr(), to_N.data_ptr(), from_N.data_ptr()
    _kernel("move_rows")(*where, len(to_N), room_BGMK.shape[1], size, _in_bytes(room_BGMK))


def can_choose(logits_NV: Tensor) -> bool:
    """Whether `best_words` takes these: float32, one row after the other."""
    return logits_NV.is_contiguous() and _numbers(logits_NV)


def best_words(
    logits_NV: Tensor, alive_BN: Tensor, count: int, end: int | None, barred_B: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The best of log softmax(logits) + alive of each sentence: log p, which hypothesis, which word."""
    (B, N), V, alive_BN = alive_BN.shape, logits_NV.shape[1], alive_BN.double().contiguous()
    logp_BC, which_2BC = alive_BN.new_empty(B, count), torch.empty(2, B, count, dtype=torch.int64)
    barred_B = None if barred_B is None else barred_B.contiguous()
    given = logits_NV.data_ptr(), alive_BN.data_ptr(), None if barred_B is None else barred_B.data_ptr()
    found = logp_BC.data_ptr(), which_2BC[0].data_ptr(), which_2BC[1].data_ptr()
    _kernel("best_words")(*given, -1 if end is None else end, B, N, V, count, *found)
    return logp_BC, which_2BC[0], which_2BC[1]


def can_norm(x: Tensor, *weights: Tensor | None) -> bool:
    """Whether `norm_rows` takes these: float32, one row after the other, and nothing is to be learned."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or library() is None:
        return False
    given = (x, *(w for w in weights if w is not None))
    if any(len(w) != x.shape[-1] for w in given[1:]):
        return False
    plain = all(type(t) in (Tensor, nn.Parameter) for t in given)  # others have no numbers here
    return plain and all(t.is_cpu and t.dtype == torch.float32 and t.is_contiguous() for t in given)


def norm_rows(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, centred: bool = True) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias; of what is not centred, the mean counts as zero."""
    y, size = torch.empty_like(x), len(weight)
    given = x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr(), y.data_ptr()
    _kernel("norm_rows")(*given, eps, x.numel() // size, size, centred)
    return y


@cache
def multiplies() -> bool:
    """Whether the products here are quicker than PyTorch's: on AVX512. Those of bytes need VNNI, too, without
    which oneDNN sums them with loss (`regard.packed.sums_bytes`).
    """
    return library() is not None and torch.backends.cpu.get_cpu_capability() == "AVX512"


def row_times(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """W x + b for one row, in float32, W whole."""
    x, y = x.contiguous(), x.new_empty(len(weight))
    given = x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr(), y.data_ptr()
    _kernel("row_times")(*given, *weight.shape)
    return y


def row_of_bytes(
    x: Tensor, whole: Tensor, scale: Tensor, total: Tensor, bias: Tensor | None = None
) -> Tensor:
    """The same where W is whole * scale, and x is rounded to a byte each. total is whole.sum(1)."""
    x, y, held = x.contiguous(), x.new_empty(len(whole)), x.new_empty(x.numel(), dtype=torch.uint8)
    given = [t.data_ptr() for t in (x, whole, scale, total)]
    more = None if bias is None else bias.data_ptr(), y.data_ptr(), held.data_ptr()
    _kernel("row_of_bytes")(*given, *more, *whole.shape)
    return y


def panels(weight: Tensor) -> Tensor:
    """W as `rows_times` reads it: some of its rows together, column by column, zeros where there is none."""
    filled_ND = F.pad(weight, (0, 0, 0, -len(weight) % PANEL))
    return filled_ND.view(-1, PANEL, weight.shape[1]).transpose(1, 2).contiguous()


def rows_times(x: Tensor, laid: Tensor, bias: Tensor | None, count: int) -> Tensor:
    """x W^T + b in float32 for any number of rows, where W was laid out by `panels` and has `count` rows."""
    x, size = x.contiguous(), laid.shape[1]
    y = x.new_empty(*x.shape[:-1], count)
    given = x.data_ptr(), laid.data_ptr(), None if bias is None else bias.data_ptr(), y.data_ptr()
    _kernel("rows_times")(*given, x.numel() // size, count, size)
    return y


def _kernel(name: str) -> Callable[..., None]:
    found = library()
    assert found is not None, "ask first whether it is there"
    return getattr(found, name)  # type: ignore[no-any-return]


def _numbers(*given: Tensor) -> bool:
    return all(t.dtype == torch.float32 for t in given) and _bytes(*given)


def _bytes(*given: Tensor) -> bool:
    if library() is None or torch.compiler.is_compiling():
        return False
    return all(t.is_cpu and t.stride(-1) == 1 and not t.requires_grad for t in given)


def _in_bytes(t: Tensor) -> Any:
    size = t.element_size()
    return Three(*(size * step for step in t.stride()[:3]))
