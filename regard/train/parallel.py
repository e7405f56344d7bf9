"""Several processes, one training: applied to any model from outside, by the type of its modules.

Started by `torchrun --nproc-per-node N -m regard train ...`. The global batch of a step is the same whatever
N is; each process works on its parts of it, and gradients are added up. DistributedDataParallel keeps all
weights in every process; FSDP2 (`train.shard`) keeps 1/N of them and gathers a block when it is needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.nn.parallel import DistributedDataParallel

from regard.errors import TryAgain

if TYPE_CHECKING:
    from regard.data.batch import Batch
    from regard.model import Model
    from regard.nn.recent import Recent
    from regard.tasks.task import Task

_LOST = re.compile("gloo|nccl|timed out|connection", re.IGNORECASE)  # how torch words it
PATIENCE = timedelta(hours=2)  # how long the others wait while the first process evaluates or saves


class Group:
    """The processes of one training; a group of one does nothing extra.

    rank     number of this process, 0 to world - 1; rank 0 writes and speaks
    world    how many processes there are
    device   where this process computes
    """

    def __init__(self, rank: int, world: int, device: torch.device, store: Store | None) -> None:
        self.rank, self.world, self.device = rank, world, device
        self._store, self._told = store, 0

    @property
    def first(self) -> bool:
        """Is this the process that writes?"""
        return self.rank == 0

    @contextmanager
    def together(self, step: int) -> Iterator[None]:
        """Around what needs the other processes: if they are gone or hang, say so, with the step."""
        try:
            yield
        except RuntimeError as error:
            if self.world == 1 or not (isinstance(error, dist.DistError) or _LOST.search(str(error))):
                raise
            raise TryAgain(
                f"process {self.rank} of {self.world} got no answer from the others at step {step}, they "
                f"died or hang: go on from the last checkpoint with --resume ({str(error).splitlines()[0]})."
            ) from error

    def add(self, numbers: Tensor) -> Tensor:
        """Each number added up over the processes."""
        if self.world > 1:
            dist.all_reduce(numbers)
        return numbers

    def tell(self, text: str) -> str:
        """What the first process says, heard by all. They wait long: it may be evaluating or saving."""
        if self._store is None:
            return text
        self._told += 1
        key = f"told/{self._told}"
        if self.first:
            self._store.set(key, text)
            return text
        self._store.wait([key], PATIENCE)
        return bytes(self._store.get(key)).decode()

    @contextmanager
    def first_first(self) -> Iterator[None]:
        """The first process does the work inside before the others (who then find what it saved)."""
        if not self.first:
            said = self.tell("")
            if said:
                raise RuntimeError(f"the first process failed: {said}")
        try:
            yield
        except BaseException as error:
            if self.first:
                self.tell(f"{type(error).__name__}: {error}")
            raise
        if self.first:
            self.tell("")


@contextmanager
def start(seconds: float | None = None) -> Iterator[Group]:
    """Join the processes that torchrun started, or be alone.

    The group is built on a store with the number of the restart in its name: in torch's own shared one the
    killed processes leave stale keys, and restarts then hang (pytorch issue 135712). A process that does not
    answer within `seconds` (REGARD_TIMEOUT, else 60) ends the training instead of hanging it.
    """
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    device = _device(int(os.environ.get("LOCAL_RANK", "0")))
    if world == 1:
        yield Group(0, 1, device, None)
        return
    timeout = timedelta(seconds=seconds or float(os.environ.get("REGARD_TIMEOUT") or 60.0))
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun keeps the store itself
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    master = rank == 0 and not hosted
    tcp = dist.TCPStore(host, port, world, is_master=master, timeout=timeout)  # type: ignore[attr-defined]
    store = PrefixStore(f"regard/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", tcp)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    try:
        yield Group(rank, world, device, store)
    finally:
        dist.destroy_process_group()


def _device(local: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


class Objective(nn.Module):
    """Task and model as one module whose forward is the loss: the place where DDP and FSDP2 hook in.

    `extra` is what the task learns beside the model, if anything.
    """

    def __init__(self, task: Task, model: Model, extra: nn.Module | None = None) -> None:
        super().__init__()
        self.task, self.model, self.extra = task, model, extra

    def forward(self, batch: Batch, memory: Recent | None = None, done: float = 0.0) -> tuple[Tensor, int]:
        """The sum of the loss over the batch's targets, and their number.

        Auxiliary losses are means, already weighed; times the number of targets they join the sum. Rows may
        go on from what they remember; `done` is the share of the training that is over.
        """
        loss = self.task.learn(self.model, batch, memory, self.extra, done)
        total = loss.sum
        for extra in loss.aux.values():
            total = total + extra * loss.count
        return total, loss.count


def spread(objective: Objective, group: Group, shard: bool, blocks: Iterable[nn.Module]) -> nn.Module:
    """The objective, ready for several processes: whole in each (DDP), or split block by block (FSDP2)."""
    if group.world == 1:
        return objective
    if not shard:
        return DistributedDataParallel(objective, broadcast_buffers=False, gradient_as_bucket_view=True)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # a second of imports, for those who need it

    mesh = init_device_mesh(group.device.type, (group.world,))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(objective, mesh=mesh)
    return objective


def adding(objective: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Around a part's forward and backward: only the last part of a step exchanges gradients."""
    if isinstance(objective, DistributedDataParallel) and not last:
        return objective.no_sync()
    told: Callable[[bool], None] | None = getattr(objective, "set_requires_gradient_sync", None)
    if told:  # given to it by fully_shard
        told(last)
    return nullcontext()


def whole(tensor: Tensor) -> Tensor:
    """The full tensor of one that may be split over processes (a DTensor). All of them must ask."""
    gather: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)
    return gather() if gather else tensor


def like(full: Tensor, example: Tensor) -> Tensor:
    """A full tensor, split in the same way as another of its shape."""
    if not hasattr(example, "placements") or full.shape != example.shape:
        return full
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(example, DTensor)
    return distribute_tensor(full.to(example.device), example.device_mesh, example.placements)
