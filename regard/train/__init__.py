"""Training: one loop for every model and task.

loop         the loop itself                 training    its options
optim        adamw adafactor muon            schedule    constant linear cosine inverse_sqrt noam wsd
checkpoint   directories that are whole      parallel    several processes, applied from outside
carry        what rows remember from step to step
"""

from regard.train.loop import train
from regard.train.optim import Adafactor, Adamw, Muon, Optimizer
from regard.train.parallel import Group, start
from regard.train.schedule import Constant, Cosine, InverseSqrt, Linear, Noam, Schedule, Wsd
from regard.train.signals import Stopped
from regard.train.state import NonFinite, Summary
from regard.train.training import Training

__all__ = [
    "Adafactor",
    "Adamw",
    "Constant",
    "Cosine",
    "Group",
    "InverseSqrt",
    "Linear",
    "Muon",
    "Noam",
    "NonFinite",
    "Optimizer",
    "Schedule",
    "Stopped",
    "Summary",
    "Training",
    "Wsd",
    "start",
    "train",
]
