"""Keys and values to measure with: BF16 tensors [sequences, tokens, kv_heads, head_dim], made on the GPU.

synthetic  Gaussian, each channel of each head with its own deviation, exp of something uniform between -1.5 and 1.5
smollm2    real keys and values of SmolLM2-135M, 8 of the 9 heads of 64 that the samples hold (3 layers of 3)
gemma      of gemma-3-270m, 3 layers with a head of 256. As 8 heads of 256: head i is layer i modulo 3, its tokens
           rotated by a third of the text for every three heads, so that no two are the same. As 8 heads of 128: the
           halves of the three layers' heads, rotated likewise

Real data is too short, so blocks of 16 tokens are drawn at random, the same for all heads, K and V, from the second
half of the prose and from the source code. Windows are chosen on the first half of the prose.
"""
import pathlib

import numpy
import torch

BLOCK = 16


class KeyValues:
    """k and v; calibration: rows (k, v) [tokens, kv_heads, head_dim] to choose windows on; query_scale: queries are
    uniform between plus and minus that, so that scores are of a usual size."""

    def __init__(self, k, v, calibration, query_scale):
        self.k, self.v, self.calibration, self.query_scale = k, v, calibration, query_scale


def synthetic(sequences, tokens, heads, head_dim, generator):
    parts = []
    for _ in range(2):
        deviation = torch.exp((torch.rand(heads, head_dim, device="cuda", generator=generator) - 0.5) * 3)
        values = torch.randn(sequences, tokens, heads, head_dim, device="cuda", dtype=torch.bfloat16,
                             generator=generator)
        parts.append(values.mul_(deviation.to(torch.bfloat16)))
    # Rows of all sequences, if one is too short.
    k, v = (part.view(-1, heads, head_dim)[:4096] for part in parts)
    return KeyValues(*parts, (k, v), 0.5)


def read_heads(folder, family, text, heads, head_dim):
    """[2 = K, V][tokens][heads][head_dim] as int16 on the CPU."""
    path = pathlib.Path(folder) / f"{family}-{text}.npy"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: give the folder with the samples of real KV with --kv")
    data = torch.from_numpy(numpy.load(path).view(numpy.int16))  # [layer][K, V][token][head][channel]
    layers, _, tokens, kv_heads, width = data.shape
    pieces = [data[layer, :, :, head, first:first + head_dim] for layer in range(layers) for head in range(kv_heads)
              for first in range(0, width - head_dim + 1, head_dim)]
    step = tokens // 3 // BLOCK * BLOCK
    chosen = [torch.roll(pieces[i % len(pieces)], step * (i // len(pieces)), dims=1) for i in range(heads)]
    return torch.stack(chosen, dim=2)


def real(folder, family, sequences, tokens, heads, head_dim, generator):
    prose = read_heads(folder, family, "prose", heads, head_dim).cuda()
    code = read_heads(folder, family, "code", heads, head_dim).cuda()
    half = prose.shape[1] // 2 // BLOCK * BLOCK
    source = torch.cat([prose[:, half:], code], dim=1)
    source = source[:, :source.shape[1] // BLOCK * BLOCK].view(2, -1, BLOCK, heads, head_dim)
    draw = torch.randint(source.shape[1], (sequences * tokens // BLOCK,), device="cuda", generator=generator)
    parts = [source[part][draw].view(torch.bfloat16).view(sequences, tokens, heads, head_dim) for part in (0, 1)]
    calibration = [prose[part, :half].contiguous().view(torch.bfloat16) for part in (0, 1)]
    return KeyValues(*parts, calibration, 0.1)


def make(kind, folder, sequences, tokens, heads, head_dim, generator):
    if kind == "synthetic":
        return synthetic(sequences, tokens, heads, head_dim, generator)
    return real(folder, kind, sequences, tokens, heads, head_dim, generator)
