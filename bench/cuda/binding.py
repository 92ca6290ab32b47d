"""The C API of libgaac_cuda (include/gaac/gaac_cuda.h) through ctypes. Needs no torch and no GPU to import.

test_binding.py compares every struct and every function here with the header, through the C compiler.
"""
import ctypes
from ctypes import POINTER, Structure, byref, c_bool, c_char, c_double, c_float, c_int, c_size_t, c_uint32, c_uint64, \
    c_void_p

BLOCK_TOKENS = 16
MAX_QUERY_TOKENS = 8
MAX_EPOCHS = 128
BF16, F32 = 0, 1


class Shape(Structure):
    _fields_ = [("kv_heads", c_uint32), ("head_dim_k", c_uint32), ("head_dim_v", c_uint32)]


class Error(Structure):
    _fields_ = [("status", c_int), ("message", c_char * 256)]


class Rows(Structure):
    """gaac_kv_rows and gaac_kv_rows_out: device pointers, strides in elements."""
    _fields_ = [("k", c_void_p), ("v", c_void_p), ("k_token_stride", c_size_t), ("k_head_stride", c_size_t),
                ("v_token_stride", c_size_t), ("v_head_stride", c_size_t)]


class Sizes(Structure):
    _fields_ = [("slot_bytes", c_size_t), ("entries_per_block", c_size_t), ("raw_bytes", c_size_t),
                ("window_table_bytes", c_size_t), ("window_bytes", c_size_t), ("histogram_counts", c_size_t)]


class Counters(Structure):
    _fields_ = [(name, c_uint64) for name in ("encoded", "fallbacks", "lost", "pool_bytes", "exceptions", "stored_n",
                                              "reopened", "reserved")]


class Cache(Structure):
    _fields_ = [("shape", Shape), ("pool_bytes", c_uint32), ("blocks", c_uint32), ("slots", c_void_p),
                ("slot_stride", c_uint64), ("entries", c_void_p), ("entry_stride", c_uint64), ("raw", c_void_p),
                ("raw_used", c_void_p), ("raw_blocks", c_uint32), ("epochs", c_uint32), ("windows", c_void_p),
                ("counters", c_void_p)]


class AppendArgs(Structure):
    _fields_ = [("rows", Rows), ("sequences", c_uint32), ("tokens", c_uint32), ("query_start", c_void_p),
                ("lengths", c_void_p), ("block_table", c_void_p), ("block_table_stride", c_size_t),
                ("epoch", c_uint32), ("keep_raw", c_bool)]


class EncodeArgs(Structure):
    _fields_ = [("rows", Rows), ("k_offsets", c_void_p), ("v_offsets", c_void_p), ("blocks", c_void_p),
                ("count", c_uint32), ("epoch", c_uint32), ("keep_raw", c_bool)]


class DecodeArgs(Structure):
    _fields_ = [("rows", Rows), ("k_offsets", c_void_p), ("v_offsets", c_void_p), ("blocks", c_void_p),
                ("count", c_uint32)]


class ExpandArgs(Structure):
    _fields_ = [("rows", Rows), ("sequences", c_uint32), ("max_tokens", c_uint32), ("first", c_void_p),
                ("lengths", c_void_p), ("row_start", c_void_p), ("block_table", c_void_p),
                ("block_table_stride", c_size_t)]


class PlanArgs(Structure):
    _fields_ = [("shape", Shape), ("query_heads", c_uint32), ("sequences", c_uint32), ("query_tokens", c_uint32),
                ("query_start", c_void_p), ("lengths", c_void_p), ("window", c_uint32)]


class AttentionArgs(Structure):
    _fields_ = [("plan", PlanArgs), ("workspace", c_void_p), ("block_table", c_void_p),
                ("block_table_stride", c_size_t), ("q", c_void_p), ("q_token_stride", c_size_t),
                ("q_head_stride", c_size_t), ("out", c_void_p), ("out_token_stride", c_size_t),
                ("out_head_stride", c_size_t), ("out_type", c_int), ("lse", c_void_p), ("scale", c_float),
                ("softcap", c_float), ("slopes", c_void_p), ("sinks", c_void_p)]


# The struct of the header that each class stands for.
STRUCTS = {
    "gaac_shape": Shape, "gaac_error": Error, "gaac_kv_rows": Rows, "gaac_kv_rows_out": Rows,
    "gaac_cuda_sizes": Sizes, "gaac_cuda_counters": Counters, "gaac_cuda_cache": Cache,
    "gaac_cuda_append_args": AppendArgs, "gaac_cuda_encode_args": EncodeArgs, "gaac_cuda_decode_args": DecodeArgs,
    "gaac_cuda_expand_args": ExpandArgs, "gaac_cuda_plan_args": PlanArgs, "gaac_cuda_attention_args": AttentionArgs,
}

_handle, _stream, _device = c_void_p, c_void_p, c_void_p
_error = POINTER(Error)
# Name: result (None: a gaac_status that is checked), arguments.
FUNCTIONS = {
    "gaac_cuda_create": (None, [POINTER(c_void_p), c_int, c_void_p, _error]),
    "gaac_cuda_destroy": ("void", [_handle]),
    "gaac_cuda_get_sizes": (None, [POINTER(Shape), c_uint32, POINTER(Sizes), _error]),
    "gaac_cuda_set_windows": (None, [_handle, POINTER(Shape), _device, _device, _stream, _error]),
    "gaac_cuda_histogram_add": (None, [_handle, POINTER(Shape), POINTER(Rows), c_uint32, _device, _stream, _error]),
    "gaac_cuda_histogram_add_blocks": (None, [_handle, POINTER(Cache), _device, c_uint32, _device, _stream, _error]),
    "gaac_cuda_choose_windows": (None, [_handle, POINTER(Shape), _device, c_double, _device, _stream, _error]),
    "gaac_cuda_append": (None, [_handle, POINTER(Cache), POINTER(AppendArgs), _stream, _error]),
    "gaac_cuda_encode": (None, [_handle, POINTER(Cache), POINTER(EncodeArgs), _stream, _error]),
    "gaac_cuda_copy_blocks": (None, [_handle, POINTER(Cache), _device, _device, c_uint32, _stream, _error]),
    "gaac_cuda_release_blocks": (None, [_handle, POINTER(Cache), _device, c_uint32, _stream, _error]),
    "gaac_cuda_decode": (None, [_handle, POINTER(Cache), POINTER(DecodeArgs), _stream, _error]),
    "gaac_cuda_expand": (None, [_handle, POINTER(Cache), POINTER(ExpandArgs), _stream, _error]),
    "gaac_cuda_plan_bytes": (None, [_handle, POINTER(PlanArgs), POINTER(c_size_t), _error]),
    "gaac_cuda_plan": (None, [_handle, POINTER(PlanArgs), c_void_p, _stream, _error]),
    "gaac_cuda_attention": (None, [_handle, POINTER(Cache), POINTER(AttentionArgs), _stream, _error]),
    "gaac_cuda_attention_kernel": ("text", [_handle, POINTER(Shape)]),
    "gaac_cuda_attention_reference": (None, [_handle, POINTER(Cache), POINTER(AttentionArgs), _stream, _error]),
}


class GaacError(RuntimeError):
    """A call that did not return GAAC_OK, with its own message."""


class Library:
    """The loaded library with one handle. Methods are named as the functions without gaac_cuda_;
    a gaac_status other than GAAC_OK raises GaacError."""

    def __init__(self, path, device=0):
        self._library = ctypes.CDLL(str(path))
        self._functions = {}
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(self._library, name)
            function.argtypes = arguments
            function.restype = {None: c_int, "void": None, "text": ctypes.c_char_p}[result]
            self._functions[name] = function
        self._handle = c_void_p()
        self._call("gaac_cuda_create", byref(self._handle), device, None)

    def _call(self, name, *arguments):
        error = Error()
        if self._functions[name](*arguments, byref(error)) != 0:
            raise GaacError(f"{name}: {error.message.decode(errors='replace')}")

    def close(self):
        if self._handle:
            self._functions["gaac_cuda_destroy"](self._handle)
            self._handle = c_void_p()

    def sizes(self, shape, pool_bytes):
        sizes = Sizes()
        self._call("gaac_cuda_get_sizes", byref(shape), pool_bytes, byref(sizes))
        return sizes

    def plan_bytes(self, plan):
        result = c_size_t()
        self._call("gaac_cuda_plan_bytes", self._handle, byref(plan), byref(result))
        return result.value

    def attention_kernel(self, shape):
        return self._functions["gaac_cuda_attention_kernel"](self._handle, byref(shape)).decode()

    def set_windows(self, shape, table, windows, stream):
        self._call("gaac_cuda_set_windows", self._handle, byref(shape), table, windows, stream)

    def histogram_add(self, shape, rows, tokens, counts, stream):
        self._call("gaac_cuda_histogram_add", self._handle, byref(shape), byref(rows), tokens, counts, stream)

    def choose_windows(self, shape, counts, exception_weight, table, stream):
        self._call("gaac_cuda_choose_windows", self._handle, byref(shape), counts, exception_weight, table, stream)

    def append(self, cache, arguments, stream):
        self._call("gaac_cuda_append", self._handle, byref(cache), byref(arguments), stream)

    def encode(self, cache, arguments, stream):
        self._call("gaac_cuda_encode", self._handle, byref(cache), byref(arguments), stream)

    def decode(self, cache, arguments, stream):
        self._call("gaac_cuda_decode", self._handle, byref(cache), byref(arguments), stream)

    def expand(self, cache, arguments, stream):
        self._call("gaac_cuda_expand", self._handle, byref(cache), byref(arguments), stream)

    def plan(self, arguments, workspace, stream):
        self._call("gaac_cuda_plan", self._handle, byref(arguments), workspace, stream)

    def attention(self, cache, arguments, stream):
        self._call("gaac_cuda_attention", self._handle, byref(cache), byref(arguments), stream)

    def attention_reference(self, cache, arguments, stream):
        self._call("gaac_cuda_attention_reference", self._handle, byref(cache), byref(arguments), stream)
