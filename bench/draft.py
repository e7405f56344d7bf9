"""Guessing ahead: a trained model of letters writes with and without guesses, the same text.

    python bench/draft.py [--rounds 5] [--quick] [--json]

A GPT of 4 layers x 192 learns regard's own source for a minute, then writes after pieces of it that it has
not seen; greedily, and drawing from the best 40 at a temperature of 0.8. That both write the same is checked
in every round.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from common import FORK, Case, Run, arguments, report
from torch import Tensor

import regard
from regard.decode import Rules, generate
from regard.model import Decoder
from regard.save import load_model, save

HERE = Path(__file__).parents[1]
LENGTH, PROMPT, DRAFT = 256, 64, 6


def taught(steps: int, folder: str) -> None:
    """A model that has learned the first nine tenths, saved."""
    ids_L = letters()
    windows_NL = ids_L[: len(ids_L) * 9 // 10].unfold(0, LENGTH + 1, 1)
    recipe = regard.system("gpt", vocab=256, width=192, heads=4, layers=4, length=LENGTH)
    model, random = regard.build(recipe).train(), torch.Generator().manual_seed(0)
    assert isinstance(model, Decoder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 50, 2 * (1 - step / steps) + 0.05)
        batch_BL = windows_NL[torch.randint(len(windows_NL), (8,), generator=random)]
        loss = model.head.loss(model.states(batch_BL[:, :-1]), batch_BL[:, 1:]) / batch_BL[:, 1:].numel()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    save(model, folder)


def letters() -> Tensor:
    """All of regard's own Python, in order, as bytes."""
    text = b"\n".join(path.read_bytes() for path in sorted((HERE / "regard").rglob("*.py")))
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def case(folder: str, rules: Rules, count: int) -> Case:
    """The same prompts, one after the other, with guesses and without."""

    def with_guesses(draft: int) -> Run:
        model, ids_L = load_model(folder), letters()
        rest_L = ids_L[len(ids_L) * 9 // 10 :]
        starts = torch.linspace(0, len(rest_L) - PROMPT, count).long().tolist()
        prompts = [rest_L[start : start + PROMPT].tolist() for start in starts]
        wanted = [generate(model, [prompt], rules=rules)[0][0].ids for prompt in prompts]
        asked = replace(rules, draft=draft)

        def run() -> None:
            found = [generate(model, [prompt], rules=asked)[0][0].ids for prompt in prompts]
            assert found == wanted

        return run

    contenders = {"regard": lambda: with_guesses(DRAFT), "token by token": lambda: with_guesses(0)}
    name = f"{rules.method} on letters, 4 x 192, {rules.length} new tokens, {DRAFT} guessed"
    return Case(name, "tokens/s", count * (rules.length or 0), contenders)


def main() -> None:
    """Both ways to choose."""
    options = arguments(__doc__ or "", 5)
    with TemporaryDirectory(prefix="regard-bench-") as place:
        folder = f"{place}/model"
        teacher = FORK.Process(target=taught, args=(20 if options.quick else 400, folder))
        teacher.start()
        teacher.join()
        if teacher.exitcode:
            raise SystemExit("the model of letters could not be trained")
        length = LENGTH - PROMPT
        ways = [Rules(length=length), Rules(length=length, method="sample", temperature=0.8, top_k=40)]
        report("draft", options, [case(folder, rules, 2 if options.quick else 16) for rules in ways])


if __name__ == "__main__":
    main()
