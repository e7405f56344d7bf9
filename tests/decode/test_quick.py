"""Compiled steps: the same answers, only where they pay, and never at the cost of an answer."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import regard
from regard.decode import Rules, generate
from regard.decode.engine import Session
from regard.decode.quick import Quick, compiled
from regard.errors import UsageError
from regard.laws.subjects import enlivened
from regard.packed import packed

PROMPT = [[3, 1, 4, 1, 5]]


def built(name: str = "gpt", **more: Any) -> Any:
    sizes = {"vocab": 37, "width": 32, "heads": 4, "layers": 2, "length": 160}
    return regard.build(regard.system(name, **sizes, **more)).eval()


def refusing(*_: object) -> Any:
    raise RuntimeError("no compiler here\nand a long story")


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # of the compiler about itself
def test_a_compiled_step_says_what_a_step_says(capfd: pytest.CaptureFixture[str]) -> None:
    """Past 64 columns too, where the cache grows, and for a second text."""
    model = built()
    whole, ready = Session(packed(model, "int8"), PROMPT), compiled(packed(model, "int8"), after=2)
    quick = Session(ready, PROMPT)
    for token in range(70):
        ids_N = torch.tensor([token % 37])
        whole.step(ids_N)
        quick.step(ids_N)
        assert (quick.logits_NV - whole.logits_NV).abs().max() < 1e-5
    assert ready.quick.program is not None and quick.cache.length == 75
    again, other = Session(ready, [[2, 7]]), Session(packed(model, "int8"), [[2, 7]])
    for session in (again, other):
        session.step(torch.tensor([9]))
    assert (again.logits_NV - other.logits_NV).abs().max() < 1e-5
    assert "uncompiled" not in capfd.readouterr().err


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_several_rows_are_compiled_and_others_stepped(capfd: pytest.CaptureFixture[str]) -> None:
    """Three rows of uneven prompts; when one has left, two go on without the program."""
    model, prompts = built(), [[3, 1, 4], [1, 5, 9, 2, 6], [5]]
    ready = compiled(packed(model), after=2)
    whole, quick = Session(packed(model), prompts), Session(ready, prompts)
    for token in range(70):
        ids_N = torch.tensor([token % 37, (token + 1) % 37, 5])
        for session in (whole, quick):
            session.step(ids_N if token < 68 else ids_N[1:])
            if token == 67:
                session.keep(torch.tensor([1, 2]))
        assert (quick.logits_NV - whole.logits_NV).abs().max() < 1e-5
    assert ready.quick.rows == 3 and ready.quick.program is not None
    assert "uncompiled" not in capfd.readouterr().err


def test_short_jobs_and_other_rows_are_never_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that refuses would be noticed."""
    module = sys.modules["regard.decode.generate"]  # its function has the same name
    monkeypatch.setattr(module, "workers", lambda model, beams=False: (1, 1))  # not side by side
    model = built()
    expected = generate(model, PROMPT * 2, rules=Rules(length=40))
    compiled(model)
    model.quick.program = refusing
    for rows in (1, 2):
        found = generate(model, PROMPT * rows, rules=Rules(length=40))
        assert [h[0].ids for h in found] == [h[0].ids for h in expected][:rows]
    assert model.quick.rows is None and model.quick.program is refusing, "it was asked"
    model.quick.rows = 1
    generate(model, PROMPT * 2, rules=Rules(length=40))
    model.quick.rows = 2
    generate(model, PROMPT, rules=Rules(method="beam", beam=2, length=40))  # two rows, but of a tree
    assert model.quick.program is refusing
    generate(model, PROMPT * 2, rules=Rules(length=40))
    assert model.quick.program is None, "of its own rows it is asked"


def test_batches_side_by_side_are_not_compiled() -> None:
    """A program uses all threads, and each of them has only one."""
    model = compiled(built(), after=0)
    model.quick.program, model.quick.threads = refusing, torch.get_num_threads() + 1
    generate(model, PROMPT * 2, rules=Rules(length=4))
    assert model.quick.program is refusing


def test_what_cannot_be_compiled_is_written_as_before(capfd: pytest.CaptureFixture[str]) -> None:
    """One sentence, once; the answer is whole."""
    model = built()
    expected = generate(model, PROMPT, rules=Rules(length=12))
    compiled(model, after=3)
    model.quick.program = refusing
    assert generate(model, PROMPT, rules=Rules(length=12))[0][0].ids == expected[0][0].ids
    said = capfd.readouterr().err
    assert said == "regard: steps stay uncompiled: no compiler here\n"
    assert model.quick.program is None


def test_two_threads_do_not_compile_at_once() -> None:
    """Who comes second goes on uncompiled."""
    model = built()
    compiled(model, after=0)
    assert isinstance(model.quick, Quick)
    model.quick.program = refusing
    with model.quick.lock:
        generate(model, PROMPT, rules=Rules(length=4))
    assert model.quick.program is refusing


def test_only_models_at_rest_that_write_are_compiled() -> None:
    """Each refusal says what to do."""
    with pytest.raises(UsageError, match="only a model that writes"):
        compiled(built("bert"))
    with pytest.raises(UsageError, match=r"model\.eval"):
        compiled(built().train())


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_two_models_in_one_process_have_a_program_each(capfd: pytest.CaptureFixture[str]) -> None:
    """Of one shape, so that a program could run with the weights of the other, and none would notice."""
    whole = [Session(enlivened(built(), seed), PROMPT) for seed in (1, 2)]
    quick = [Session(compiled(enlivened(built(), seed), after=0), PROMPT) for seed in (1, 2)]
    for token in range(3):
        for session in (*whole, *quick):
            session.step(torch.tensor([token]))
        for plain, fast in zip(whole, quick, strict=True):
            assert (fast.logits_NV - plain.logits_NV).abs().max() < 1e-4
    assert (quick[0].logits_NV - quick[1].logits_NV).abs().max() > 1, "else nothing is shown"
    quick[1].model.quick = quick[0].model.quick  # as a shallow copy would have it
    for session in (whole[1], quick[1]):
        session.step(torch.tensor([7]))
    assert (quick[1].logits_NV - whole[1].logits_NV).abs().max() < 1e-4
    assert "uncompiled" not in capfd.readouterr().err
