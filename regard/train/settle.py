"""What `auto` means: the same step in several ways, timed once; the choice is said, and kept on resuming."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from regard.train.precision import Precision, autocast, compile_model, quicker, seed, uncompile_model

if TYPE_CHECKING:
    from regard.data.batch import Batch
    from regard.train.session import Session

PAYS = 600.0  # seconds a run must still take: compiling takes about half a minute


def settle(session: Session) -> None:
    """The number format of products, and whether the model is compiled."""
    session.precision = _precision(session)
    session.compiled = _compiled(session)


def _precision(session: Session) -> Precision:
    asked, state = session.training.precision, session.state
    if asked != "auto":
        return asked
    if state.precision is None:
        found = quicker(_step(session))
        gain = found["fp32"] / found["bf16"]
        told = session.group.tell("bf16" if gain > 1.02 else "fp32")
        state.precision = "bf16" if told == "bf16" else "fp32"
        session.log.say(f"precision {state.precision}: a step in bf16 is {gain:.2f} times as fast as in fp32")
        session.log.event("precision", chosen=state.precision, **found)
    return state.precision


def _compiled(session: Session) -> bool:
    asked, state = session.training.compile, session.state
    if asked != "auto":
        return asked
    if state.compiled is None:
        state.compiled, why = _worth(session)
        session.log.say(f"{'compiled' if state.compiled else 'not compiled'}: {why}")
        session.log.event("compile", chosen=state.compiled, why=why)
    elif state.compiled:
        compile_model(session.model)
    return state.compiled


def _worth(session: Session) -> tuple[bool, str]:
    """Whether the model is quicker compiled, and why, or why not; if so, it is compiled."""
    if why := _hindrance(session):
        return False, why
    step, training = _step(session), session.training
    plain = min(_seconds(step, session.precision) for _ in range(3))
    left = plain * (training.steps - session.state.step)
    left = left if training.minutes is None else min(left, 60 * training.minutes - session.state.seconds)
    if left < PAYS:
        return False, f"the run takes about {left / 60:.1f} minutes, which is too short"
    compile_model(session.model)
    try:
        first = _seconds(step, session.precision)
    except Exception as error:  # a compiler has many ways to fail, and none of them may end a run
        uncompile_model(session.model)
        return False, f"it cannot be ({type(error).__name__})"
    gain = plain / min(_seconds(step, session.precision) for _ in range(3))
    if gain < 1.05:
        uncompile_model(session.model)
    return gain >= 1.05, f"a compiled step is {gain:.2f} times as fast (compiling took {first:.0f} s)"


def _hindrance(session: Session) -> str:
    """Why it is not even tried."""
    if session.batches.carried:
        return "a memory is carried from step to step"
    if session.extra is not None:
        return "single layers are looked at"
    if session.training.recompute:
        return "activations are computed again"
    if session.group.world > 1:
        return "there are several processes"
    if _shapes(session.lent(0)) != _shapes(session.lent(1)):
        return "batches have many shapes"
    return ""


def _step(session: Session) -> Callable[[Precision], None]:
    """A step that leaves no trace."""
    batch = session.lent().to(session.group.device)
    seed(session.training.seed, session.state.step)

    def step(precision: Precision) -> None:
        with autocast(session.group.device, precision):
            loss, _ = session.objective(batch)
        loss.backward()
        for optimizer in session.optimizers:
            optimizer.zero_grad(set_to_none=True)

    return step


def _seconds(step: Callable[[Precision], None], precision: Precision) -> float:
    start = time.perf_counter()
    step(precision)
    return time.perf_counter() - start


def _shapes(batch: Batch) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in batch.tensors.items()}
