#!/usr/bin/env python3
"""Writes the seeds of corpus/: small inputs that reach what random bytes rarely do.

    fuzz/make_corpus.py        after a change to an input's layout (fuzz_NAME.c says it)

Seeds are made from the formats' own rules, so that they teach them too; slots come from the golden files of
the tile format. Inputs that a fuzzer found (NAME-of-the-fault) are not touched. The profiles were written by
gaac calibrate.
"""

import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests/tools"))
from fixtures import gguf, gguf_text, model, npy  # noqa: E402


def write(target, name, content):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


# ---- slots: mode, shape, windows and pool, seed ------------------------------------------------

DECODE, ENCODE_BITS, ENCODE_NEAR, PAPER = range(4)
SHAPES = [(1, 64, 64), (1, 128, 128), (1, 80, 80), (1, 96, 96), (1, 256, 256),
          (1, 64, 128), (2, 128, 64), (1, 80, 176), (2, 112, 112), (3, 16, 48)]  # heads, head_dim of K and of V
POOLS = [0, 64, 320, 1024]


def slot_header(mode, shape, windows=0, pool=0, seed=1, scheme=0):
    return bytes([mode, SHAPES.index(shape), windows | POOLS.index(pool) << 2 | scheme << 4, seed])


def golden_slots():
    """Entries and pool of blocks that are rightly coded; the target fills the fixed parts."""
    for path in sorted((HERE.parent / "tests/format/golden").glob("*.json")):
        block = json.loads(path.read_text())
        shape = block["kv_heads"], block["head_dim_k"], block["head_dim_v"]
        if shape in SHAPES:
            pool = bytes.fromhex(block["slot"])[-block["pool_bytes"]:]
            yield path.stem, shape, bytes.fromhex(block["entries"]), pool


def one_unit(hv, tags=b"", stored=b"", records=(), flags=0):
    """A table entry and variable part: tags, stored N bytes, padding, exceptions from the end downwards."""
    body = tags.ljust(32 * hv, b"\0") + stored
    tail = b"".join(struct.pack("<I", record) for record in reversed(records))
    body += bytes(-(len(body) + len(tail)) % 16) + tail
    return struct.pack("<I", len(body) // 16 << 12 | flags << 20), body


def slots():
    for name, shape, entries, pool in golden_slots():
        write("slot", f"golden-{name}", slot_header(DECODE, shape) + entries + pool)
    one = (1, 64, 64)
    entry, body = one_unit(1, b"\xff", bytes(range(8)))
    write("slot", "one-lane-stored", slot_header(DECODE, one) + entry + body)
    entry, body = one_unit(1, b"\xff" * 32, bytes(256))
    write("slot", "all-stored", slot_header(DECODE, one, pool=320) + entry + body)
    entry, body = one_unit(1, b"\xff" * 32, bytes(224))
    write("slot", "too-few-stored", slot_header(DECODE, one, pool=320) + entry + body)
    more = 1 << 31
    entry, body = one_unit(1, records=[more | 0xff | 1 << 8, more | 5 << 9 | 1 << 14, 31 << 15 | 15 << 9], flags=5)
    write("slot", "three-exceptions", slot_header(DECODE, one, windows=3) + entry + body)
    entry, body = one_unit(1, records=[more] * 8, flags=1)
    write("slot", "exceptions-without-end", slot_header(DECODE, one) + entry + body)
    entry, body = one_unit(1, records=[1 << 13], flags=1)
    write("slot", "exception-in-a-missing-half", slot_header(DECODE, one) + entry + body)
    write("slot", "entry-past-the-pool", slot_header(DECODE, one, pool=64) + struct.pack("<I", 3 | 2 << 12))
    write("slot", "length-of-zero", slot_header(DECODE, one) + bytes(4))
    for name, k_unit in (  # V in K's unit, beside a sound unit of V
        ("tag-of-a-missing-part", one_unit(1, b"\x10", bytes(1))),
        ("exception-of-a-missing-part", one_unit(1, records=[1 << 14], flags=1)),
    ):
        entry, body = k_unit
        v_entry = struct.pack("<I", len(body) // 16 | 64 // 16 << 12)
        write("slot", name, slot_header(DECODE, (1, 64, 128)) + entry + v_entry + body + bytes(64))
    for n, shape in enumerate(SHAPES):
        name = "-".join(map(str, shape))
        write("slot", f"near-{name}", slot_header(ENCODE_NEAR, shape, n % 4) + bytes([15, 17, 16, 19, 18, 22, 20]))
    mixed = bytes([15, 16, 17, 18, 19, 20, 21] * 9 + [8, 11, 23])
    write("slot", "near-wide-groups", slot_header(ENCODE_NEAR, (1, 128, 128)) + mixed)
    write("slot", "near-exceptions", slot_header(ENCODE_NEAR, (1, 128, 128)) + mixed * 4 + b"\x00\x1f")
    write("slot", "near-small-pool", slot_header(ENCODE_NEAR, (2, 128, 64), pool=64) + mixed)
    write("slot", "bits-specials", slot_header(ENCODE_BITS, one)
          + struct.pack("<10H", 0, 0x8000, 1, 0x807F, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 0x0080, 0x7F7F))
    write("slot", "bits-zeros", slot_header(ENCODE_BITS, (1, 256, 256), windows=2))
    write("slot", "bits-ones", slot_header(ENCODE_BITS, (1, 80, 80), pool=320) + b"\x80\x3f")
    for scheme in range(3):
        write("slot", f"paper-{scheme}", slot_header(PAPER, (1, 80, 176), scheme=scheme) + b"\x80\x3f\x00\xe4")


# ---- KV dumps ----------------------------------------------------------------------------------

def kv_dumps():
    block = struct.pack("<256H", *(0x3F00 + 0x41 * i % 0x180 for i in range(256)))
    good = npy(block * 4, (1, 2, 32, 1, 16))
    write("kv_dump", "two-blocks", good)
    write("kv_dump", "two-heads-of-64", npy(block, (1, 2, 16, 2, 64)))  # the target completes it
    write("kv_dump", "version-2", npy(b"", (1, 2, 1, 1, 16), version=2))
    write("kv_dump", "version-3", npy(b"", (2, 2, 3, 1, 32), version=3))
    write("kv_dump", "truncated", good[:-2])
    write("kv_dump", "too-long", good + b"..")
    write("kv_dump", "fortran", npy(b"", (1, 2, 16, 1, 16), fortran=True))
    write("kv_dump", "float", npy(b"", (1, 2, 16, 1, 16), "<f4"))
    write("kv_dump", "wrapping", npy(b"", (2**32 - 1, 2, 2**62, 1, 64)))
    write("kv_dump", "too-many-dimensions", npy(b"", (1,) * 9))
    write("kv_dump", "odd-start", b"\x93NUMPY\x01\x00\x3f\x00"
          + b"{'descr': '<u2', 'fortran_order': False, 'shape': (1,2,1,1,16)}" + bytes(64))
    write("kv_dump", "double-quotes", b"\x93NUMPY\x01\x00\x44\x00"
          + b'{"shape": (1,\t2,1,1,16,),\n"fortran_order": False, "descr": "<u2",}   ' + bytes(64))


# ---- model files -------------------------------------------------------------------------------

def models():
    huge = struct.pack("<Q", 2**64 - 1)
    write("gguf", "model", model())
    write("gguf", "version-2", gguf([("general.architecture", 8, gguf_text("x"))], version=2))
    write("gguf", "every-type", gguf([(f"a.{kind}", kind, bytes(width)) for kind, width in
                                      enumerate((1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8))]))
    write("gguf", "linear", gguf([("x.rope.scale_linear", 12, struct.pack("<d", 2.5)),
                                  ("x.rope.freq_base", 4, struct.pack("<I", 10000))]))
    write("gguf", "nested-arrays", gguf([("k", 9, struct.pack("<IQ", 9, 1) * 3 + struct.pack("<IQ2B", 0, 2, 1, 1))]))
    write("gguf", "nested-too-deep", gguf([("k", 9, struct.pack("<IQ", 9, 1) * 9 + struct.pack("<IQ", 0, 0))]))
    write("gguf", "huge-array", gguf([("k", 9, struct.pack("<I", 10) + huge)]))
    write("gguf", "huge-string", gguf([("k", 8, huge)]))
    write("gguf", "huge-count", struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**63))
    write("gguf", "big-endian", gguf([], version=3 << 24))
    write("gguf", "name-cut-inside-a-character", gguf([("general.name", 8, gguf_text("x" + "\u00e9" * 140))]))
    write("gguf", "name-that-is-no-utf8", gguf([("general.name", 8, struct.pack("<Q", 4) + b"a\xff\xc3b")]))
    write("gguf", "base-is-nan", gguf([("x.rope.freq_base", 6, struct.pack("<f", float("nan")))]))


# ---- operations on a cache: choice, size, a shape for each layer; then steps --------------------

APPEND, WRITE, SCATTER, DROP, COPY, SETTLE, REBUILD, COMPARE, REFUSED, FAIL = range(10)
CODED = 0x40


def cache_header(layers=1, sequences=1, blocks=12, limit=0, shapes=(0, 0), mode=CODED):
    return bytes([mode | layers - 1 | sequences - 1 << 1, blocks - 5 | limit << 3, *shapes[:layers]])


def append(block, blocks=4, layer=0, sequence=0, kind=0, parts=0):
    return bytes([APPEND, parts | layer << 2 | sequence << 4, kind, 16 * block, 16 * blocks - 1])


def caches():
    fill = append(0) + append(4) + append(8)
    write("cache", "fill-and-read", cache_header() + fill + bytes([COMPARE]))
    write("cache", "raw-mode", cache_header(mode=0) + fill + bytes([WRITE, 0, 0, 5, 7, DROP, 0, 16, 40]))
    write("cache", "values-apart", cache_header() + append(0, parts=1) + append(4, parts=1) + append(0, parts=2)
          + append(4, parts=2))
    write("cache", "rewrite-and-settle", cache_header() + fill + bytes([WRITE, 0, 0, 20, 5, SETTLE])
          + bytes([WRITE, 1, 4, 70, 19, COMPARE]))
    write("cache", "scattered", cache_header() + fill + bytes([SCATTER, 0, 0, 0, 5, 3, 90, 17, 3, 64, 1]))
    write("cache", "two-sequences", cache_header(2, 2, shapes=(0, 2)) + fill + append(0, layer=1) + append(4, layer=1)
          + bytes([COPY, 0x10, 8, 99, DROP, 0, 3, 60, COPY, 0x01, 0, 191]))
    write("cache", "drop-all", cache_header() + fill + bytes([DROP, 0x81, 0, 191]) + fill)
    write("cache", "save-and-restore", cache_header() + fill + bytes([REBUILD, WRITE, 0, 0, 33, 3, REBUILD]))
    write("cache", "restore-before-calibration", cache_header() + append(0, 1) + bytes([REBUILD]) + fill)
    write("cache", "at-the-limit", cache_header(limit=2) + fill + bytes([WRITE, 0, 0, 3, 18, WRITE, 0, 0, 50, 18])
          + bytes([DROP, 0, 0, 63]) + append(8))
    write("cache", "values-that-do-not-fit", cache_header() + fill + append(0, kind=5) + append(4, kind=7) + fill)
    write("cache", "places-that-are-not-there", cache_header() + b"".join(bytes([REFUSED, n]) for n in range(32)))
    short = b"".join(bytes([FAIL, n, APPEND, 0, 0, 0, 63]) for n in range(16))
    write("cache", "short-of-memory", cache_header(1, 2) + short + bytes([FAIL, 0, COPY, 0x10, 0, 60, FAIL, 3, SETTLE]))
    write("cache", "no-coded-units", cache_header(shapes=(3, 3)) + fill + bytes([WRITE, 0, 5, 3, 3, REBUILD]))


if __name__ == "__main__":
    slots()
    kv_dumps()
    models()
    caches()
