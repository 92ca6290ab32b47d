"""What bench.py measures. The order is that of importance: a run may be cut short.

A target is what was set out for on one H200: a speed-up against the best BF16 attention of the run, or microseconds or
GB/s.
"""
import dataclasses


K = 1024


@dataclasses.dataclass(frozen=True)
class Attention:
    batch: int
    tokens: int  # of each sequence
    head_dim: int = 128
    group: int = 8  # query heads of a KV head
    query_tokens: int = 1
    data: str = "synthetic"
    raw: float = 0.0  # share of blocks that are kept raw
    spread: bool = False  # sequences of lengths from an eighth of tokens to all of it
    kv_heads: int = 8
    order: str = "random"  # of the physical blocks and the peers' pages, or "in order"
    target: float = None
    quick: bool = False

    @property
    def name(self):
        least = f"{self.tokens // 8 // K}K-" if self.spread else ""
        words = [f"attention D{self.head_dim} GQA{self.group} {self.batch}x{least}{self.tokens // K}K"]
        if self.query_tokens > 1:
            words.append(f"{self.query_tokens} queries")
        if self.raw:
            words.append(f"{self.raw:.0%} raw")
        if self.data != "synthetic":
            words.append(self.data)
        if self.order != "random":
            words.append(self.order)
        return " ".join(words)


@dataclasses.dataclass(frozen=True)
class DecompressFirst:
    tokens: int
    target: float = None
    quick: bool = False

    @property
    def name(self):
        return f"decompress first 1x{self.tokens // K}K"


@dataclasses.dataclass(frozen=True)
class Prefill:
    batch: int
    tokens: int
    data: str = "synthetic"
    target: float = None
    quick: bool = False

    @property
    def name(self):
        return f"encode prefill {self.batch}x{self.tokens // K}K" + ("" if self.data == "synthetic" else
                                                                        f" {self.data}")


@dataclasses.dataclass(frozen=True)
class Completed:
    batch: int
    target: float = None
    quick: bool = False

    @property
    def name(self):
        return f"append a token, {self.batch} sequences"


@dataclasses.dataclass(frozen=True)
class Decode:
    batch: int
    tokens: int
    data: str = "synthetic"
    head_dim: int = 128
    target: float = None
    quick: bool = False

    @property
    def name(self):
        return (f"decode {self.batch}x{self.tokens // K}K" + (f" D{self.head_dim}" if self.head_dim != 128 else "")
                + ("" if self.data == "synthetic" else f" {self.data}"))


@dataclasses.dataclass(frozen=True)
class Compressors:
    data: str
    head_dim: int
    tokens: int = 32768
    quick: bool = False

    @property
    def name(self):
        return f"compressors {self.data} D{self.head_dim}"


# The main targets: sequences, tokens, head_dim, target, whether --quick takes them. Each with physical blocks in order,
# as in a cache of one piece or from a fresh allocator, and in random order, as in a server that has run for long.
MAIN = (
    (8, 32 * K, 128, 1.33, True),
    (4, 64 * K, 128, 1.33, False),
    (32, 16 * K, 128, 1.33, False),
    (1, 128 * K, 128, 1.30, False),
    (1, 64 * K, 128, 1.26, True),
    (1, 16 * K, 128, 1.07, False),
    (1, 8 * K, 128, 1.0, False),
    (1, 4 * K, 128, 1.0, True),
    (8, 32 * K, 64, 1.27, True),
    (8, 32 * K, 256, 1.30, True),
)

CASES = (
    *(Attention(batch, tokens, head_dim=head_dim, order=order, target=target, quick=quick)
      for batch, tokens, head_dim, target, quick in MAIN for order in ("in order", "random")),
    Attention(8, 32 * K, raw=0.01),
    Attention(8, 32 * K, raw=0.10, quick=True),
    Prefill(4, 8 * K, target=1000, quick=True),
    Completed(64, target=10, quick=True),
    Decode(8, 32 * K, target=2200, quick=True),
    DecompressFirst(64 * K, target=2.0, quick=True),
    Attention(8, 32 * K, data="gemma", quick=True),
    Attention(4, 64 * K, data="gemma"),
    Attention(8, 32 * K, head_dim=64, data="smollm2"),
    Attention(8, 32 * K, head_dim=256, data="gemma"),
    Compressors("gemma", 128, quick=True),
    Compressors("smollm2", 64),
    Compressors("synthetic", 128),
    Attention(64, 2 * K),
    Attention(128, 4 * K),
    Attention(64, 8 * K, spread=True, quick=True),
    Attention(8, 32 * K, group=4),
    Attention(8, 32 * K, group=1),
    Attention(8, 32 * K, query_tokens=2),
    Attention(8, 32 * K, query_tokens=4, quick=True),
    Attention(8, 32 * K, query_tokens=8),
    Attention(1, 64 * K, query_tokens=4),
    Prefill(1, 8 * K),
    Prefill(16, 2 * K),
    Prefill(4, 8 * K, data="gemma"),
    Completed(8),
    Completed(256),
    Decode(1, 64 * K),
    Decode(8, 32 * K, data="gemma"),
    Decode(8, 32 * K, head_dim=64),
    DecompressFirst(16 * K),
    Attention(8, 16 * K, head_dim=96),
    Attention(8, 16 * K, head_dim=192),
    Attention(1, 32 * K),
    Attention(1, 2 * K),
)


def synthetic_twin(case):
    """The name of the same case with synthetic keys and values; None for a case that has them, or knows no other."""
    if isinstance(case, Compressors) or getattr(case, "data", "synthetic") == "synthetic":
        return None
    return dataclasses.replace(case, data="synthetic").name
