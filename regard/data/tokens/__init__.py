"""Text to numbers and back: `tokens` in a config, of a task.

bytes      the 256 bytes of UTF-8                     bpe        Sennrich et al. 2016, arXiv 1508.07909
chars      the characters that occur                  unigram    Kudo 2018, arXiv 1804.10959
words      the most frequent words                    wordpiece  Schuster and Nakajima 2012; BERT's
"""

from regard.data.tokens.bpe import Bpe
from regard.data.tokens.bytes import Bytes
from regard.data.tokens.chars import Chars
from regard.data.tokens.codec import Stream
from regard.data.tokens.tokens import Tokens, load_tokens
from regard.data.tokens.unigram import Unigram
from regard.data.tokens.wordpiece import Wordpiece
from regard.data.tokens.words import Words

__all__ = ["Bpe", "Bytes", "Chars", "Stream", "Tokens", "Unigram", "Wordpiece", "Words", "load_tokens"]
