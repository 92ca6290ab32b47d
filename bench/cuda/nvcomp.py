"""nvCOMP's batched C API through ctypes: general compressors on the same keys and values, all on the device.

Every codec of its low-level API has the same functions and options of 64 bytes that are passed by value.
"""
import ctypes
import struct
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

import torch
from peers import Unavailable

CHAR, UCHAR, USHORT, FLOAT16, BITS = 0, 1, 3, 10, 0xff  # nvcompType_t
CASCADED_ASYMMETRIC, CASCADED_BITPACK, CASCADED_ALL = 1, 1, 7


class Options(ctypes.Structure):
    _fields_ = [("words", c_uint64 * 8)]


def options(layout="", *values):
    packed = struct.pack("<" + layout, *values).ljust(64, b"\0")
    return Options((c_uint64 * 8)(*struct.unpack("<8Q", packed)))


# Codec, options to compress and to decompress for a type of elements.
CODECS = {
    "ANS": lambda kind: (options("iiBBB", 0, kind, 0, 0, 0), options("iiBBBB", 0, BITS, 0, 0, 0, 0)),
    "Bitcomp": lambda kind: (options("iidi", 0, kind, 0.0, 0), options()),
    "Cascaded": lambda kind: (options("iiQQQB", kind, CASCADED_ASYMMETRIC, CASCADED_BITPACK, 0, CASCADED_ALL, 3),
                              options("i4xiiQQ", 0, BITS, 0, 0, 0)),
    "Zstd": lambda kind: (options(), options()),
    "Gdeflate": lambda kind: (options("i", 1), options()),
    "LZ4": lambda kind: (options("ii", kind, 0), options("iiii", 0, 0, kind, 0)),
}
# What is measured: codec, type for whole BF16 values, type for exponents alone.
TYPES = {"ANS": (FLOAT16, CHAR), "Bitcomp": (USHORT, UCHAR), "Cascaded": (USHORT, UCHAR), "Zstd": (CHAR, CHAR),
         "Gdeflate": (CHAR, CHAR), "LZ4": (CHAR, CHAR)}


def load(folder):
    path = folder / "libnvcomp.so.6"
    if not path.exists():
        raise Unavailable(f"{path} is missing: bench/cuda/get-peers.sh makes it")
    return ctypes.CDLL(str(path))


class Codec:
    """Compresses `data` (a contiguous tensor on the device) in chunks, and decompresses it again."""

    def __init__(self, library, name, kind, data, chunk):
        self.library, self.name, self.data, self.chunk = library, name, data.view(-1).view(torch.uint8), chunk
        self.compress_options, self.decompress_options = CODECS[name](kind)
        total = self.data.numel()
        self.count = (total + chunk - 1) // chunk
        starts = torch.arange(self.count, dtype=torch.int64, device="cuda") * chunk
        self.sizes = torch.full((self.count,), chunk, dtype=torch.int64, device="cuda")
        self.sizes[-1] = total - (self.count - 1) * chunk
        largest = c_size_t()
        self._call("CompressGetMaxOutputChunkSize", c_size_t(chunk), self.compress_options, byref(largest))
        stride = (largest.value + 255) // 256 * 256
        self.compressed = torch.empty(self.count * stride, dtype=torch.uint8, device="cuda")
        self.restored = torch.zeros(self.count * chunk, dtype=torch.uint8, device="cuda")
        self.from_pointers = starts + self.data.data_ptr()
        self.compressed_pointers = torch.arange(self.count, device="cuda") * stride + self.compressed.data_ptr()
        self.to_pointers = starts + self.restored.data_ptr()
        self.compressed_sizes = torch.zeros_like(self.sizes)
        self.restored_sizes = torch.zeros_like(self.sizes)
        self.statuses = torch.zeros(self.count, dtype=torch.int32, device="cuda")
        self.scratch = {
            "Compress": self._scratch("CompressGetTempSize", self.compress_options, total),
            "Decompress": self._scratch("DecompressGetTempSize", self.decompress_options, total)}

    def _scratch(self, function, chosen, total):
        needed = c_size_t()
        self._call(function, c_size_t(self.count), c_size_t(self.chunk), chosen, byref(needed), c_size_t(total),
                   self._stream())
        return torch.empty(max(needed.value, 16), dtype=torch.uint8, device="cuda")

    @staticmethod
    def _stream():
        return c_void_p(torch.cuda.current_stream().cuda_stream)

    def _call(self, function, *arguments):
        call = getattr(self.library, f"nvcompBatched{self.name}{function}")
        call.restype = c_int
        status = call(*arguments)
        if status:
            raise RuntimeError(f"nvcompBatched{self.name}{function}: status {status}")

    @staticmethod
    def _pointer(tensor):
        return c_void_p(tensor.data_ptr())

    def compress(self):
        scratch = self.scratch["Compress"]
        self._call("CompressAsync", self._pointer(self.from_pointers), self._pointer(self.sizes),
                   c_size_t(self.chunk), c_size_t(self.count), self._pointer(scratch), c_size_t(scratch.numel()),
                   self._pointer(self.compressed_pointers), self._pointer(self.compressed_sizes),
                   self.compress_options, self._pointer(self.statuses), self._stream())

    def decompress(self):
        scratch = self.scratch["Decompress"]
        self._call("DecompressAsync", self._pointer(self.compressed_pointers), self._pointer(self.compressed_sizes),
                   self._pointer(self.sizes), self._pointer(self.restored_sizes), c_size_t(self.count),
                   self._pointer(scratch), c_size_t(scratch.numel()), self._pointer(self.to_pointers),
                   self.decompress_options, self._pointer(self.statuses), self._stream())

    def check(self):
        """Compresses and decompresses once; returns the compressed bytes and the number of bytes that differ."""
        self.compress()
        torch.cuda.synchronize()
        if int((self.statuses != 0).sum()):
            raise RuntimeError(f"{self.name}: compression failed with status {int(self.statuses.max())}")
        self.decompress()
        torch.cuda.synchronize()
        if int((self.statuses != 0).sum()):
            raise RuntimeError(f"{self.name}: decompression failed with status {int(self.statuses.max())}")
        total = self.data.numel()
        return int(self.compressed_sizes.sum()), int((self.restored[:total] != self.data).sum())
