"""What rows remember from step to step, where batches go on from each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.errors import UsageError
from regard.train.checkpoint import Tensors

if TYPE_CHECKING:
    from regard.data.batch import Batch, Batches
    from regard.model import Model
    from regard.nn.recent import Recent
    from regard.tasks.task import Task
    from regard.train.parallel import Group


class Carry:
    """The memories of this process's rows, one for each of its parts of a batch.

    It belongs to the training, not to the model: saved with each checkpoint, row by row, so that a resumed
    run goes on bit for bit, and another number of processes can take the rows over. It is empty at the
    beginning of an epoch, and after a step that was not finite.
    """

    def __init__(self, task: Task, model: Model, batches: Batches, group: Group, accumulate: int) -> None:
        self.task, self.model, self.batches, self.group = task, model, batches, group
        self.parts = group.world * accumulate
        self.first = group.rank * accumulate  # the number of this process's first part
        self.held: dict[int, Recent] = {}
        if batches.carried:
            task.remember(model, 1)  # refuses what cannot go on, before the first step
            if (batches.size or 1) < self.parts:
                raise UsageError(
                    f"each of the {self.parts} parts of a batch (processes x train.accumulate) carries the "
                    f"memory of its rows, but there are only {batches.size} rows; give a larger train.size."
                )

    def of(self, step: int, piece: int, batch: Batch) -> Recent | None:
        """What the rows of this part remember before the batch of a step; None: batches stand alone."""
        if not self.batches.carried:
            return None
        if self.begins(step):
            self.held.pop(piece, None)
        if piece not in self.held:
            self.held[piece] = self.task.remember(self.model, len(batch))
        return self.held[piece]

    def begins(self, step: int) -> bool:
        """Is this step the first of its epoch?"""
        return self.batches.epoch_of(step)[1] == 0

    def forget(self) -> None:
        """Start all rows anew."""
        self.held = {}

    def take(self, step: int) -> Tensors:
        """The memories of all rows, in order, before the batch of a step; every process must ask."""
        if not self.held or self.begins(step):
            return {}
        found: Tensors = {}
        for piece, memory in sorted(self.held.items()):
            for name, rows in memory.take().items():
                if name not in found:
                    found[name] = rows.new_zeros(self.batches.size or 1, *rows.shape[1:])
                found[name][self.first + piece :: self.parts] = rows
        return {name: self.group.add(found[name]).cpu() for name in sorted(found)}

    def put(self, rows: Tensors) -> bool:
        """Go on from what `take` gave; False if those were other rows."""
        if not self.batches.carried or len(rows["next"]) != self.batches.size:
            return False
        for piece in range(self.parts // self.group.world):
            mine = {name: t[self.first + piece :: self.parts] for name, t in rows.items()}
            self.held[piece] = memory = self.task.remember(self.model, len(mine["next"]))
            memory.put({name: t.to(self.group.device) for name, t in mine.items()})
        return True
