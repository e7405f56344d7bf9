"""Heads that share keys and values: the means are right, nothing changes where nothing is pooled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.convert import convert, group
from regard.cost import cache_bytes
from regard.errors import UsageError
from regard.launch import train
from regard.laws import decode_equals_forward, lively
from regard.laws.asking import ask, tokens
from regard.laws.subjects import attentions
from regard.model import Model
from regard.nn.mixer import Attention

SYSTEMS = ["gpt", "llama", "t5", "vanilla", "bert", "linformer", "memory_compressed"]


def model(name: str = "gpt", **options: Any) -> Model:
    given: dict[str, Any] = {"vocab": 13, "width": 24, "heads": 4, "layers": 2, "length": 48}
    if name == "linformer":
        given["keys"] = 5
    return lively(regard.system(name, **given, **options))


@pytest.mark.parametrize("name", SYSTEMS)
def test_as_many_groups_as_heads_change_no_bit(name: str) -> None:
    old, ids = model(name), tokens(3)
    new = group(old, 4)
    with torch.no_grad():
        assert torch.equal(ask(new, ids), ask(old, ids))
    assert new.recipe is not None and not new.training


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("groups", [2, 1])
def test_heads_that_were_alike_lose_nothing_by_sharing(name: str, groups: int, tmp_path: Path) -> None:
    """Where all heads of a group have the same keys and values, the grouped model answers the same."""
    options = {"sharing": "none"} if name == "linformer" else {}
    old, ids = model(name, **options), tokens(3)
    kept = "encoder." if name in ("t5", "vanilla") else "-"
    with torch.no_grad():
        for path, a in old.named_modules():
            if isinstance(a, Attention) and not path.startswith(kept):
                matrix, asks = (a.kv, 0) if a.cross else (a.qkv, a.heads * a.size)
                for p in matrix.parameters():
                    answers = p[asks:].view(2, groups, 4 // groups, a.size, *p.shape[1:])
                    answers.copy_(answers[:, :, :1].expand_as(answers).clone())
                for p in a.compress.parameters() if a.compress is not None else ():
                    if p.ndim == 3:
                        each = p.view(groups, 4 // groups, *p.shape[1:])
                        each.copy_(each[:, :1].expand_as(each).clone())
        new = group(old, groups)
        assert (ask(new, ids) - ask(old, ids)).abs().max() <= 1e-5
        again = regard.load(regard.save(new, tmp_path / "m")).model
        assert torch.equal(ask(again, ids), ask(new, ids))
    assert {
        a.groups for p, a in again.named_modules() if isinstance(a, Attention) and not p.startswith(kept)
    } == {groups}


def test_repeated_weights_answer_bit_for_bit() -> None:
    """GQA with its sets written out once for each head is MHA."""
    shared = model(groups=2)
    whole = model()
    with torch.no_grad():
        for few, many in zip(attentions(shared), attentions(whole), strict=True):
            for p, q in zip(few.qkv.parameters(), many.qkv.parameters(), strict=True):
                answers = p[24:].view(2, 2, 1, 6, *p.shape[1:]).expand(2, 2, 2, 6, *p.shape[1:])
                q.copy_(torch.cat([p[:24], answers.reshape(-1, *p.shape[1:])]))
        rest = {n: p for n, p in shared.state_dict().items() if "qkv" not in n}
        whole.load_state_dict(rest, strict=False)
        ids = tokens(3)
        assert torch.equal(ask(whole, ids), ask(shared, ids))
        assert torch.equal(ask(group(whole, 2), ids), ask(shared, ids))


def test_keys_and_values_are_the_means() -> None:
    old = model()
    new = group(old, 2)
    for a, b in zip(attentions(old), attentions(new), strict=True):
        assert torch.equal(b.qkv.weight[:24], a.qkv.weight[:24])
        keys = a.qkv.weight[24:48].view(4, 6, 24)
        assert torch.allclose(b.qkv.weight[24:30], (keys[0] + keys[1]) / 2, atol=1e-7)
        assert torch.allclose(b.qkv.weight[30:36], (keys[2] + keys[3]) / 2, atol=1e-7)
        values = a.qkv.bias[48:].view(4, 6)
        assert torch.allclose(b.qkv.bias[36:42], (values[0] + values[1]) / 2, atol=1e-7)
    assert decode_equals_forward(new) < 1e-4
    assert attentions(group(new, 1))[0].groups == 1, "what is grouped may be grouped further"


def test_the_cache_gets_smaller() -> None:
    old = model()
    new = group(old, 1)
    assert [sum(b for _, b in cache_bytes(m, 1, 10)) for m in (old, new)] == [1920, 480]


def test_what_does_not_divide_is_refused() -> None:
    for groups in (3, 0, 8):
        with pytest.raises(
            UsageError, match=r"groups must divide the 4 sets of keys and values at decoder.blocks"
        ):
            group(model(), groups)


def test_a_model_without_heads_that_could_share_is_refused() -> None:
    with pytest.raises(UsageError, match="no attention whose heads could share"):
        group(model("reformer"), 1)


def test_a_folder_is_converted(tmp_path: Path) -> None:
    regard.save(model(), tmp_path / "m")
    out = convert(tmp_path / "m", 2, tmp_path / "g")
    assert attentions(regard.load(out).model)[0].groups == 2
    with pytest.raises(UsageError, match="is there already"):
        convert(tmp_path / "m", 2, out)


def test_a_run_is_converted_and_can_be_asked(tmp_path: Path) -> None:
    run = {
        "model": {"system": "vanilla", "width": 16, "heads": 2, "layers": 1, "length": 24, "dropout": 0.0},
        "task": {
            "kind": "algorithms",
            "name": "reverse",
            "symbols": 9,
            "longest": 9,
            "samples": 50,
            "tests": 5,
        },
        "train": {"steps": 2, "size": 4},
    }
    train(run, out=tmp_path / "r")
    out = convert(tmp_path / "r", 1, tmp_path / "g")
    loaded = regard.load(out)
    assert "groups: 1" in (out / "config.yaml").read_text()
    assert not (out / "checkpoints").exists()
    assert len(loaded.predict(["a b c"], cache="int8")) == 1
