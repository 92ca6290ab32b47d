"""Other people's BF16 decode attention, all over the same keys and values and in the same process.

A peer is made for one problem and may have several settings, of which the fastest is taken: `run()` then is what is
timed. What cannot be had, or does not serve a problem, raises Unavailable or whatever its library raises; the
benchmark says so in its results.
"""
import os
import warnings

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

XQA_PAGE = 64  # of build_flashinfer.py


class Unavailable(RuntimeError):
    """This peer is not installed, or does not do what the problem asks for."""


class Problem:
    """Decode attention over kv (kv_data.KeyValues): q [sequences * query_tokens, query_heads, head_dim], lengths
    (a list) up to kv's tokens, block_table [sequences, blocks] of physical blocks of 16 tokens."""

    def __init__(self, kv, q, query_tokens, lengths, block_table):
        self.kv, self.q, self.query_tokens, self.lengths, self.block_table = kv, q, query_tokens, lengths, block_table
        self.sequences, self.tokens, self.kv_heads, self.head_dim = kv.k.shape
        self.query_heads = q.shape[1]
        self.scale = self.head_dim ** -0.5
        self.ragged = min(lengths) != self.tokens
        self.lengths_device = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        self._made = {}

    def head_major(self):
        """k and v as [sequences, kv_heads, tokens, head_dim], each head's tokens together in memory."""
        return self._once("head_major", lambda part: part.transpose(1, 2).contiguous())

    def pages(self, size):
        """k and v as pages [pages, kv_heads, size, head_dim] in random order, and the table of page numbers
        [sequences, pages of a sequence]. Pages of 16 are numbered as GAAC's blocks."""
        if size == self.block_table_tokens():
            table = self.block_table
        else:
            count = self.tokens // size
            table = torch.randperm(self.sequences * count, device="cuda").view(self.sequences, count).int()

        def paged(part):
            pages = part.view(-1, size, self.kv_heads, self.head_dim).transpose(1, 2)
            shuffled = torch.empty(pages.shape, dtype=part.dtype, device=part.device)
            shuffled[table.flatten().long()] = pages
            return shuffled
        return (*(paged(part) for part in (self.kv.k, self.kv.v)), table)

    def block_table_tokens(self):
        return self.tokens // self.block_table.shape[1]

    def _once(self, name, make):
        if name not in self._made:
            self._made[name] = tuple(make(part) for part in (self.kv.k, self.kv.v))
        return self._made[name]

    def expected(self, sequence):
        """The output of one sequence in double precision, [query_tokens, query_heads, head_dim]."""
        length, group = self.lengths[sequence], self.query_heads // self.kv_heads
        rows = slice(sequence * self.query_tokens, (sequence + 1) * self.query_tokens)
        q = self.q[rows].double().view(self.query_tokens, self.kv_heads, group, self.head_dim)
        k, v = (part[sequence, :length].double() for part in (self.kv.k, self.kv.v))
        scores = torch.einsum("thgd,lhd->htgl", q, k) * self.scale
        cell = torch.arange(length, device="cuda")
        last = length - self.query_tokens + torch.arange(self.query_tokens, device="cuda")
        scores.masked_fill_((cell[None, :] > last[:, None])[None, :, None, :], float("-inf"))
        return torch.einsum("htgl,lhd->thgd", torch.softmax(scores, dim=-1), v).reshape(
            self.query_tokens, self.query_heads, self.head_dim)


class Sdpa:
    """torch.nn.functional.scaled_dot_product_attention over contiguous keys and values."""

    def __init__(self, problem, backend, name):
        if problem.ragged:
            raise Unavailable("serves sequences of one length only")
        self.name, self.backend = name, backend
        self.problem = problem
        self.k, self.v = problem.head_major()
        tokens = problem.query_tokens
        # Two ways for one query token: with enable_gqa, or the query heads of a KV head as rows of one query.
        self.settings = ["folded", "enable_gqa"] if tokens == 1 else ["enable_gqa"]
        self.q = problem.q.view(problem.sequences, tokens, problem.query_heads, -1).transpose(1, 2).contiguous()
        self.folded = problem.q.view(problem.sequences, problem.kv_heads, -1, problem.head_dim)
        self.bias = None
        if tokens > 1:
            if backend == SDPBackend.FLASH_ATTENTION:
                from torch.nn.attention.bias import causal_lower_right
                self.bias = causal_lower_right(tokens, problem.tokens)
            else:
                cell = torch.arange(problem.tokens, device="cuda")
                row = torch.arange(tokens, device="cuda")
                self.bias = (cell[None, :] <= row[:, None] + problem.tokens - tokens)[None, None]
        self.setting, self.out = self.settings[0], None

    def run(self):
        with sdpa_kernel(self.backend):
            if self.setting == "folded":
                self.out = functional.scaled_dot_product_attention(self.folded, self.k, self.v,
                                                                   scale=self.problem.scale)
            else:
                self.out = functional.scaled_dot_product_attention(
                    self.q, self.k, self.v, attn_mask=self.bias, enable_gqa=self.problem.query_heads >
                    self.problem.kv_heads, scale=self.problem.scale)

    def output(self):
        problem = self.problem
        if self.setting == "folded":
            return self.out.reshape(problem.sequences, problem.query_heads, problem.head_dim)
        return self.out.transpose(1, 2).reshape(problem.q.shape)


def cudnn(problem, _):
    return Sdpa(problem, SDPBackend.CUDNN_ATTENTION, "cuDNN (torch SDPA)")


def flash2(problem, _):
    return Sdpa(problem, SDPBackend.FLASH_ATTENTION, "FlashAttention 2 (torch SDPA)")


class Flash3:
    """FlashAttention 3 as vLLM ships it, over contiguous keys and values. settings: numbers of splits, 0 for its own
    choice. For sequences of several lengths the scheduler's metadata is made ahead, as vLLM does once a step."""
    name = "FlashAttention 3 (vLLM)"

    def __init__(self, problem, peers):
        path = peers / "flash3.so"
        if not path.exists():
            raise Unavailable(f"{path} is missing: bench/cuda/get-peers.sh makes it")
        torch.ops.load_library(str(path))
        self.problem = problem
        shape = (problem.sequences, problem.query_tokens, problem.query_heads, problem.head_dim)
        self.q = problem.q.view(shape)
        self.out = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        self.k, self.v = (part.transpose(1, 2) for part in problem.head_major())
        self.settings = [0, 2, 4, 8, 16, 32, 64] if not problem.ragged else [0, 4, 16, 32]
        self.metadata = {}
        for splits in self.settings if problem.ragged else ():
            self.metadata[splits] = torch.ops._vllm_fa3_C.get_scheduler_metadata(
                problem.sequences, problem.query_tokens, problem.tokens, problem.query_heads, problem.kv_heads,
                problem.head_dim, problem.head_dim, torch.bfloat16, problem.lengths_device, None, None, None, None,
                None, None, 0, problem.query_tokens > 1, -1, -1, False, splits, None, 0)
        self.setting = 0

    def run(self):
        problem = self.problem
        torch.ops._vllm_fa3_C.fwd(
            self.q, self.k, self.v, None, None, None, self.out, None, None, None, None,
            problem.lengths_device if problem.ragged else None, None, None, None, None, None, None, None, None, None,
            None, None, problem.scale, problem.query_tokens > 1, -1, -1, 0.0, True, self.metadata.get(self.setting),
            self.setting, None, 0, None, 1, 0, None)

    def output(self):
        return self.out.view(self.problem.q.shape)


def flashinfer_module():
    # Kernels that were not compiled ahead must not be compiled in measured time.
    os.environ.setdefault("FLASHINFER_DISABLE_JIT", "1")
    os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
    os.environ.setdefault("FLASHINFER_LOGGING_LEVEL", "warning")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import flashinfer
    except ImportError as error:
        raise Unavailable(f"flashinfer cannot be imported: {error}") from error
    return flashinfer


class FlashInfer:
    """BatchDecodeWithPagedKVCacheWrapper over pages of 16 tokens. settings: which of its kernels."""
    name = "FlashInfer"

    def __init__(self, problem, _):
        module = flashinfer_module()
        self.problem = problem
        self.q = problem.q
        self.out = torch.empty_like(problem.q)
        page = problem.block_table_tokens()
        k, v, table = problem.pages(page)
        self.pages = (k, v)
        counts = [(length + page - 1) // page for length in problem.lengths]
        starts = torch.tensor([0, *counts]).cumsum(0).int()
        indices = torch.cat([table[i, :count] for i, count in enumerate(counts)])
        last = torch.tensor([(length - 1) % page + 1 for length in problem.lengths], dtype=torch.int32)
        self.wrappers, reasons = {}, []
        group = problem.query_heads // problem.kv_heads
        for setting in ("tensor cores", "CUDA cores"):
            if setting == "CUDA cores" and (problem.query_tokens > 1 or group > 1):
                continue  # that kernel is single-token, and reads keys once a query head
            try:
                wrapper = module.BatchDecodeWithPagedKVCacheWrapper(
                    torch.zeros(256 << 20, dtype=torch.uint8, device="cuda"), "HND",
                    use_tensor_cores=setting == "tensor cores", backend="fa2")
                wrapper.plan(starts, indices, last, problem.query_heads, problem.kv_heads, problem.head_dim, page,
                             q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16, sm_scale=problem.scale,
                             q_len_per_req=problem.query_tokens)
                self.wrappers[setting] = wrapper
            except Exception as error:  # one kernel missing does not hide the other
                reasons.append(f"{setting}: {str(error).splitlines()[0]}")
        if not self.wrappers:
            raise Unavailable("; ".join(reasons))
        self.settings = list(self.wrappers)
        self.setting = self.settings[0]

    def run(self):
        self.wrappers[self.setting].run(self.q, self.pages, out=self.out)

    def output(self):
        return self.out


class Xqa:
    """XQA of TensorRT-LLM, as FlashInfer ships it, over pages of 64 tokens."""
    name = "XQA (FlashInfer)"

    def __init__(self, problem, _):
        module = flashinfer_module()
        if problem.query_tokens > 1:
            raise Unavailable("several query tokens need a kernel for each number of them")
        if problem.tokens % XQA_PAGE:
            raise Unavailable(f"pages hold {XQA_PAGE} tokens")
        self.function = module.decode.xqa_batch_decode_with_kv_cache
        self.problem = problem
        k, v, self.table = problem.pages(XQA_PAGE)
        self.pages = (k, v)
        self.workspace = torch.zeros(512 << 20, dtype=torch.uint8, device="cuda")
        self.lengths = problem.lengths_device.to(torch.uint32)
        self.out = torch.empty_like(problem.q)
        self.settings = ["page of 64"]
        self.setting = self.settings[0]

    def run(self):
        self.function(self.problem.q, self.pages, self.workspace, self.table, self.lengths, self.problem.tokens,
                      bmm1_scale=self.problem.scale, kv_layout="HND", out=self.out)

    def output(self):
        return self.out


ATTENTION = {"cuDNN (torch SDPA)": cudnn, "FlashAttention 2 (torch SDPA)": flash2, Flash3.name: Flash3,
             FlashInfer.name: FlashInfer, Xqa.name: Xqa}

