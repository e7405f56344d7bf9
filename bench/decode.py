"""Writing: cached greedy decoding of GPT-2's shape, and beam search of a small translator, against peers.

    python bench/decode.py [--rounds 5] [--quick] [--json]

Weights are random and no answer may end early, so that every contender writes the same number of tokens: the
speed of writing is timed, not the luck of when answers end. Each precision is a case of its own. The limit is
the time in which memory yields the weights once for each token, as measured in the same round.

Random hypotheses share no past, though, and answers do end. So where Multi30k is at hand, a translator learns
it for some minutes first, and its test set is translated too: by the same weights, each library with its own
rule of when to stop, and regard once more with theirs (patience 1).
"""

from __future__ import annotations

import copy
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import torch
from common import LIMIT, Case, Make, Run, arguments, peaks, reading, report
from peers import ctranslate2_of, hf_gpt, hf_marian, m2m_of, regard_gpt, regard_translator, words, x_gpt

import regard
from regard.data.tokens import load_tokens
from regard.decode import Rules, generate
from regard.decode.quick import compiled
from regard.heap import in_large_pages, keep_memory
from regard.packed import Precision, packed

GPT2 = {"vocab": 50257, "width": 768, "heads": 12, "layers": 12, "length": 1024}
TINY = {"vocab": 8000, "width": 128, "heads": 4, "layers": 4, "hidden": 256, "length": 256}
BEAM, TOGETHER = 5, 64  # hypotheses of a sentence; sentences of like length that peers answer together
HERE = Path(__file__).parents[1]
RECIPE, DATA = HERE / "recipes" / "multi30k_tiny.yaml", HERE.parent / "shared" / "data" / "multi30k"


def greedy(batch: int, prompt: int, new: int, precision: Precision, threads: int) -> Case:
    """Prompts of one length, greedy, with a cache."""
    ids_BL = torch.randint(3, GPT2["vocab"], (batch, prompt), generator=torch.Generator().manual_seed(0))
    rows, half = ids_BL.tolist(), precision == "bf16"

    def ours(pack: bool, compiles: bool = False) -> Run:
        keep_memory()  # as regard.load does
        model = regard_gpt(**GPT2).eval()
        in_large_pages(model.parameters())
        ready = packed(model, precision) if pack else model
        ready = compiled(ready, after=0) if compiles else ready
        return lambda: _count(generate(ready, rows, rules=Rules(length=new)), batch * new)

    def transformers() -> Run:
        model = hf_gpt(**GPT2).eval()
        model = copy.deepcopy(model).bfloat16() if half else model
        options = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0}

        def run() -> None:
            with torch.no_grad():
                out = model.generate(ids_BL, attention_mask=torch.ones_like(ids_BL), **options)
            assert out.shape == (batch, prompt + new)

        return run

    def x_transformers() -> Run:
        from x_transformers import AutoregressiveWrapper

        model = AutoregressiveWrapper(x_gpt(**GPT2)).eval()
        model = model.bfloat16() if half else model

        def run() -> None:
            with torch.no_grad():
                out = model.generate(ids_BL, new, temperature=0.0, cache_kv=True)
            assert out.shape == (batch, new)

        return run

    def ctranslate2(kind: str) -> Run:
        writer = ctranslate2_of(hf_gpt(**GPT2), "GPT2Loader", threads, kind)
        given = [words(row) for row in rows]

        def run() -> None:
            out = writer.generate_batch(
                given, max_length=new, min_length=new, sampling_topk=1, include_prompt_in_result=False
            )
            assert all(len(each.sequences_ids[0]) == new for each in out)

        return run

    contenders: dict[str, Make] = {"regard": partial(ours, precision != "fp32")}
    if precision == "fp32":
        contenders["regard, packed"] = partial(ours, True)
    contenders["regard, compiled"] = partial(ours, True, True)
    if precision != "int8":
        contenders |= {"transformers": transformers, "x-transformers": x_transformers}
    if precision != "bf16":
        contenders["CTranslate2"] = partial(ctranslate2, {"fp32": "float32", "int8": "int8"}[precision])
    weights = 12 * GPT2["layers"] * GPT2["width"] ** 2 + GPT2["vocab"] * GPT2["width"]
    if batch == 1:
        contenders[LIMIT] = reading(new * weights * {"fp32": 4, "bf16": 2, "int8": 1}[precision])
    name = f"greedy, GPT-2 small, {precision}, batch {batch}, prompt {prompt}, {new} new tokens"
    return Case(name, "tokens/s", batch * new, contenders)


def beam(sentences: int, new: int, threads: int) -> Case:
    """Sources of 8 to 19 tokens, beam 5."""
    vocab = TINY["vocab"]
    random = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, vocab - 2, (8 + n % 12,), generator=random).tolist() for n in range(sentences)]
    sources = [[*row, 1] for row in rows]

    def ours(pack: bool) -> Run:
        keep_memory()
        model = regard_translator(**TINY)
        ready = packed(model) if pack else model
        rules = Rules(method="beam", beam=BEAM, alpha=1.0, length=new, min_length=new)
        prompts = [[2]] * sentences
        return lambda: _count(generate(ready, prompts, sources, rules, eos=1), sentences * new)

    def marian() -> Run:
        model = hf_marian(**TINY)
        given = sorted(sources, key=len)
        batches = [_padded(given[n : n + TOGETHER], vocab - 1) for n in range(0, sentences, TOGETHER)]
        options: dict[str, Any] = {"num_beams": BEAM, "max_new_tokens": new, "min_new_tokens": new}
        options |= {"do_sample": False, "length_penalty": 1.0}

        def run() -> None:
            for ids_BL in batches:
                with torch.no_grad():
                    out = model.generate(ids_BL, attention_mask=(ids_BL != vocab - 1).long(), **options)
                assert out.shape == (len(ids_BL), new + 1)

        return run

    def ctranslate2(side: int) -> Run:
        writer = ctranslate2_of(hf_marian(**TINY), "MarianMTLoader", threads // side, side=side)
        given = [words(row) for row in sources]

        def run() -> None:
            out = writer.translate_batch(
                given,
                beam_size=BEAM,
                max_decoding_length=new,
                min_decoding_length=new,
                max_batch_size=TOGETHER,
                length_penalty=1.0,
            )
            assert all(len(each.hypotheses[0]) == new for each in out)

        return run

    contenders = {"regard": partial(ours, False), "regard, packed": partial(ours, True)}
    contenders |= {"transformers Marian": marian, "CTranslate2": partial(ctranslate2, 1)}
    if threads > 1:
        contenders["CTranslate2, side by side"] = partial(ctranslate2, threads)
    name = f"beam {BEAM}, 4 + 4 x 128 (hidden 256), {sentences} sentences of {new} tokens"
    return Case(name, "sentences/s", sentences, contenders)


def taught(folder: str, steps: int) -> None:
    """A translator that has learned Multi30k for a while."""
    brief = [f"train.steps={steps}", f"train.evaluate_every={steps}", "task.limit=64"]
    command = [sys.executable, "-m", "regard", "train", str(RECIPE), *brief, "--out", folder]
    subprocess.run(command, cwd=HERE, stdout=subprocess.DEVNULL, check=True)


def translated(folder: str, sentences: int, threads: int, most: int = 80) -> Case:
    """The test set of Multi30k, beam 5."""
    lines = (DATA / "test_2016.en").read_text(encoding="utf-8").splitlines()[:sentences]
    tokens = load_tokens(Path(folder) / "tokens")
    vocab, start, end = tokens.vocab, tokens.id("<s>"), tokens.id("</s>")
    # the last and rarest token is what peers pad with
    sources = [[t for t in tokens.encode(line.lower()) if t < vocab - 1] + [end] for line in lines]
    sizes = TINY | {"vocab": vocab, "length": 128}

    def ours(patience: float | None) -> Run:
        model = regard.load(folder, precision="fp32").model
        rules = Rules(method="beam", beam=BEAM, alpha=1.0, length=most, patience=patience)
        return lambda: generate(model, [[start]] * len(lines), sources, rules, eos=end)

    def transformers() -> Run:
        model = m2m_of(regard.load(folder).model, start, end, **sizes)
        by_length = sorted(sources, key=len)
        batches = [_padded(by_length[n : n + TOGETHER], vocab - 1) for n in range(0, len(lines), TOGETHER)]
        options: dict[str, Any] = {"num_beams": BEAM, "max_new_tokens": most, "length_penalty": 1.0}

        def run() -> None:
            for ids_BL in batches:
                with torch.no_grad():
                    model.generate(
                        ids_BL, attention_mask=(ids_BL != vocab - 1).long(), do_sample=False, **options
                    )

        return run

    def ctranslate2(side: int) -> Run:
        model = m2m_of(regard.load(folder).model, start, end, **sizes)
        writer = ctranslate2_of(model, "M2M100Loader", threads // side, side=side, marks=(start, end))
        options = {"beam_size": BEAM, "max_decoding_length": most, "length_penalty": 1.0}
        asked = [words(row) for row in sources]
        return lambda: writer.translate_batch(asked, max_batch_size=TOGETHER, **options)

    contenders = {"regard": partial(ours, None), "regard, patience 1": partial(ours, 1.0)}
    contenders |= {"transformers M2M100": transformers, "CTranslate2": partial(ctranslate2, 1)}
    if threads > 1:
        contenders["CTranslate2, side by side"] = partial(ctranslate2, threads)
    name = f"beam {BEAM}, the same shape after learning Multi30k, {len(lines)} sentences of its test set"
    return Case(name, "sentences/s", len(lines), contenders)


def _padded(rows: list[list[int]], fill: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])


def _count(found: list[list[Any]], expected: int) -> None:
    assert sum(len(hypotheses[0].ids) for hypotheses in found) == expected


def main() -> None:
    """Run all cases."""
    options = arguments(__doc__ or "", rounds=5)
    threads = options.threads
    every = get_args(Precision)
    # one row writes as long as people read, so that its speed is that of writing, not of reading the prompt
    lengths = {1: 8, 16: 8} if options.quick else {1: 128, 16: 32}
    cases = [greedy(batch, 32, new, each, threads) for batch, new in lengths.items() for each in every]
    cases.append(beam(16 if options.quick else 1000, 10 if options.quick else 20, threads))
    with TemporaryDirectory(prefix="regard-bench-") as place:
        if DATA.is_dir():
            folder = f"{place}/run"
            taught(folder, 20 if options.quick else 1000)
            cases.append(translated(folder, 16 if options.quick else 1000, threads))
        report("decode", options, cases, peaks=peaks())


if __name__ == "__main__":
    main()
