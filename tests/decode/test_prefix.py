"""A prefix model reads its prompt in both directions, in training, scoring and generating alike."""

from __future__ import annotations

import torch

import regard
from regard.data.batch import Batch
from regard.decode import Rules, generate, score
from regard.model import Decoder
from regard.nn.pattern import Prefix
from regard.spec import of
from regard.tasks.transduce import pair_batch, pair_loss

EOS, BOS = 1, 2


def prefix_model() -> Decoder:
    recipe = regard.system("gpt", vocab=13, width=32, heads=4, layers=2, length=64, pattern=of(Prefix))
    model = regard.build(recipe, seed=1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.3)
    assert isinstance(model, Decoder)
    return model.eval()


def test_the_prompt_is_read_in_both_directions_and_the_rest_is_not() -> None:
    model = prefix_model()
    ids = torch.tensor([[3, 4, 5, 6, 7, 8]])
    changed = torch.tensor([[3, 4, 9, 6, 7, 8]])
    prefix = torch.tensor([3])
    one, two = (model.states(x, prefix_B=prefix) for x in (ids, changed))
    assert (one[:, 0] - two[:, 0]).abs().max() > 1e-3  # a prompt's first token sees its last
    later = model.states(torch.tensor([[3, 4, 5, 6, 7, 9]]), prefix_B=prefix)
    assert torch.equal(one[:, :5], later[:, :5])


def test_loss_score_and_generation_agree() -> None:
    model = prefix_model()
    sources = [[3, 4, 5, EOS], [6, 7, EOS]]
    prompts = [[*source, BOS] for source in sources]
    best = generate(model, prompts, rules=Rules(length=5), eos=EOS)
    answers = [found[0].ids for found in best]
    cut = [found[0].end != "eos" for found in best]
    scored = [
        score(model, [prompt], [answer], eos=None if short else EOS)[0]
        for prompt, answer, short in zip(prompts, answers, cut, strict=True)
    ]
    for found, logp in zip(best, scored, strict=True):
        assert abs(found[0].logp - logp) < 1e-4
    targets = [[*answer, EOS] for answer in answers]
    batch = pair_batch(sources, targets, BOS, [0, 1])
    assert isinstance(batch, Batch)
    loss = pair_loss(
        model, batch, lambda logits, target: -logits.log_softmax(-1).gather(1, target[:, None]).sum()
    )
    whole = sum(score(model, prompts, answers, eos=EOS))
    assert abs(loss.sum.item() + whole) < 1e-3


def test_without_the_prefix_the_answer_differs() -> None:
    model = prefix_model()
    prompt, answer = [3, 4, 5, EOS, BOS], [6, 7]
    ids = torch.tensor([[*prompt, 6]])
    plain = model.head.log_prob(model.states(ids))[0, [4, 5], torch.tensor(answer)].sum()
    assert abs(plain.item() - score(model, [prompt], [answer])[0]) > 1e-3
