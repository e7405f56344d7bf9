"""Tasks: what is asked of a model and how the answer is scored. `task` in a config.

language     the next token; bits per byte and perplexity
masked       hidden words (BERT)                    Devlin et al. 2019, arXiv 1810.04805
denoise      dropped spans (T5)                     Raffel et al. 2020, arXiv 1910.10683
translate    another language; BLEU and chrF        Vaswani et al. 2017, arXiv 1706.03762
classify     a label for a text, or for each word
algorithms   copy, reverse, sort, addition, parity, lookup, made on the fly
dates        dates in thirty languages to ISO 8601, made on the fly
"""

from regard.tasks.algorithms import Algorithms
from regard.tasks.classify import Classify
from regard.tasks.dates import Dates
from regard.tasks.denoise import Denoise
from regard.tasks.language import Language
from regard.tasks.masked import Masked
from regard.tasks.task import Loss, Task
from regard.tasks.translate import Translate

__all__ = [
    "Algorithms", "Classify", "Dates", "Denoise", "Language", "Loss", "Masked", "Task", "Translate",
]  # fmt: skip
