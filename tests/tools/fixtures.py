"""What the tests of the gaac command share: running it, and small input files made from their formats' rules."""

import json
import os
import pathlib
import random
import struct
import subprocess
import tempfile
import unittest

COMMAND = os.environ.get("GAAC_COMMAND", "gaac")
SHARED_DATA = pathlib.Path(os.environ.get("GAAC_SHARED_DATA", "/nonexistent"))
HAS_PLOT = os.environ.get("GAAC_HAS_PLOT", "") not in ("", "0", "FALSE", "OFF")


class CommandTest(unittest.TestCase):
    """Each test gets a folder of its own, and an environment without GAAC's and llama.cpp's variables."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GAAC_", "LLAMA_ARG_", "GGML_")) and name not in ("PYTHONPATH", "MODEL")
        }

    def run_gaac(self, *arguments, environment=None):
        return subprocess.run(
            [COMMAND, *map(str, arguments)],
            cwd=self.folder,
            env={**self.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def path(self, name, content):
        path = self.folder / name
        if isinstance(content, str):
            content = content.encode()
        path.write_bytes(content)
        return path

    def program(self, name, text):
        path = self.path(name, text)
        path.chmod(0o755)
        return path

    def assert_refused(self, result, code, *words):
        """That code, nothing on stdout, and one line that starts with 'gaac: ', has a remedy and says these words."""
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertRegex(result.stderr, r"\Agaac: [^\n]+\n\Z")
        self.assertRegex(result.stderr, r"[;:(]")
        for word in words:
            self.assertIn(word, result.stderr)


def npy(data, shape, descr="<u2", fortran=False, version=1):
    header = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape!r}, }}"
    size = 10 if version == 1 else 12
    header += " " * (-(size + len(header) + 1) % 64) + "\n"
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header.encode() + data


def kv_bits(count, seed=1, sigma=1.0):
    """BF16 bits of normal values: what keys and values look like to the codec."""
    draw = random.Random(seed).gauss
    values = struct.pack(f"<{count}f", *(draw(0, sigma) for _ in range(count)))
    return b"".join(values[4 * i + 2 : 4 * i + 4] for i in range(count))


def dump(layers=1, tokens=256, heads=1, head_dim=64, seed=1):
    shape = (layers, 2, tokens, heads, head_dim)
    return npy(kv_bits(layers * 2 * tokens * heads * head_dim, seed), shape)


def gguf(pairs, version=3, tensors=0):
    """pairs: (key, type number, packed value)."""
    text = struct.pack("<4sIQQ", b"GGUF", version, tensors, len(pairs))
    for key, kind, value in pairs:
        text += gguf_text(key) + struct.pack("<I", kind) + value
    return text


def gguf_text(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def model(name="A model", context=4096, tail=b"weights"):
    return (
        gguf(
            [
                ("general.architecture", 8, gguf_text("llama")),
                ("general.name", 8, gguf_text(name)),
                ("llama.context_length", 4, struct.pack("<I", context)),
                ("llama.block_count", 4, struct.pack("<I", 2)),
                ("llama.rope.freq_base", 6, struct.pack("<f", 500000)),
                ("llama.rope.scaling.type", 8, gguf_text("yarn")),
                ("llama.rope.scaling.factor", 6, struct.pack("<f", 4)),
                ("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + gguf_text("a") + gguf_text("b")),
                ("tokenizer.ggml.scores", 9, struct.pack("<IQ2f", 6, 2, 0, 0)),
            ]
        )
        + tail
    )


def crc64_xz(data):
    crc = 0xFFFFFFFFFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xC96C5795D7870F42 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFFFFFFFFFF


def profile(model_hash="", model_name="A model", heads=1, head_dim=64):
    """A profile of one layer, written from docs/profile.md."""
    table = bytes([112] * (heads * head_dim) + [110] * (2 * heads * head_dim))
    header = {
        "__metadata__": {
            "format": "gaac-profile",
            "format_version": "1",
            "checksum": "0" * 16,
            "scheme": "production",
            "layers": f"0:{heads}:{head_dim}:{head_dim}",
            "model_name": model_name,
            "model_hash": model_hash,
            "rope_base": "10000",
            "rope_scaling": "none",
            "text": "text.txt",
            "tokens": "4096",
            "date": "2025-01-31T12:00:00Z",
        },
        "pool_bytes": {"dtype": "U32", "shape": [1], "data_offsets": [0, 4]},
        "layers.0.windows": {"dtype": "U8", "shape": [len(table)], "data_offsets": [4, 4 + len(table)]},
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    whole = struct.pack("<Q", len(text)) + text + struct.pack("<I", 256) + table
    return whole.replace(b'"checksum":"' + b"0" * 16, b'"checksum":"%016x' % crc64_xz(whole))
