"""Writes a small Llama model with random F32 weights as a GGUF file, with any shape of its heads.

No tokenizer: programs that take token numbers (scenario, llama-bench) run it. F32 weights and
activations leave only the cache's own rounding between two ways to run it."""
import argparse
import array
import pathlib
import random
import struct

STRING, UINT32, FLOAT32 = 8, 4, 6
F32 = 0
ALIGNMENT = 32


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def metadata(key, value):
    if isinstance(value, str):
        return text(key) + struct.pack("<I", STRING) + text(value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", FLOAT32, value)
    return text(key) + struct.pack("<II", UINT32, value)


def tensors_of(shape):
    """(name, dimensions with the fastest first) of every tensor; norms are one-dimensional."""
    width, inner = shape.width, 2 * shape.width
    yield "token_embd.weight", (width, shape.vocabulary)
    yield "output_norm.weight", (width,)
    yield "output.weight", (width, shape.vocabulary)
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", (width,)
        yield block + "attn_q.weight", (width, shape.heads * shape.head_dim_k)
        yield block + "attn_k.weight", (width, shape.kv_heads * shape.head_dim_k)
        yield block + "attn_v.weight", (width, shape.kv_heads * shape.head_dim_v)
        yield block + "attn_output.weight", (shape.heads * shape.head_dim_v, width)
        yield block + "ffn_norm.weight", (width,)
        yield block + "ffn_gate.weight", (width, inner)
        yield block + "ffn_up.weight", (width, inner)
        yield block + "ffn_down.weight", (inner, width)


def weights(dimensions, source):
    if len(dimensions) == 1:
        return array.array("f", [1.0] * dimensions[0])
    # A gain over 1 makes some attention scores large: a softmax that is nearly flat would hide errors.
    deviation = 1.6 / dimensions[0] ** 0.5
    return array.array("f", (source.gauss(0.0, deviation) for _ in range(dimensions[0] * dimensions[1])))


def write_model(path, shape, seed=1):
    source = random.Random(seed)
    pairs = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "general.alignment": ALIGNMENT,
        "llama.vocab_size": shape.vocabulary,
        "llama.context_length": 4096,
        "llama.embedding_length": shape.width,
        "llama.block_count": shape.layers,
        "llama.feed_forward_length": 2 * shape.width,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.key_length": shape.head_dim_k,
        "llama.attention.value_length": shape.head_dim_v,
        "llama.rope.dimension_count": shape.head_dim_k,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "none",
    }
    tensors = list(tensors_of(shape))
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    header += b"".join(metadata(key, value) for key, value in pairs.items())
    offset = 0
    for name, dimensions in tensors:
        header += text(name) + struct.pack("<I", len(dimensions))
        header += struct.pack(f"<{len(dimensions)}Q", *dimensions) + struct.pack("<IQ", F32, offset)
        size = 4
        for dimension in dimensions:
            size *= dimension
        offset += (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    with open(path, "wb") as file:
        file.write(header + b"\0" * (-len(header) % ALIGNMENT))
        for _, dimensions in tensors:
            data = weights(dimensions, source).tobytes()
            file.write(data + b"\0" * (-len(data) % ALIGNMENT))


def shape_of(heads, kv_heads, head_dim_k, head_dim_v=None, layers=3, width=128, vocabulary=384):
    return argparse.Namespace(heads=heads, kv_heads=kv_heads, head_dim_k=head_dim_k,
                              head_dim_v=head_dim_v or head_dim_k, layers=layers, width=width,
                              vocabulary=vocabulary)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("heads", type=int)
    parser.add_argument("kv_heads", type=int)
    parser.add_argument("head_dim_k", type=int)
    parser.add_argument("head_dim_v", type=int, nargs="?")
    given = parser.parse_args()
    write_model(given.path, shape_of(given.heads, given.kv_heads, given.head_dim_k, given.head_dim_v))
