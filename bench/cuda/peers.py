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
    (a list) up to kv's tokens, block_table [sequences, blocks] of physical blocks of 16 tokens; in_order: whether
    pages of other sizes lie in order too, or in random order."""

    def __init__(self, kv, q, query_tokens, lengths, block_table, in_order=False):
        self.kv, self.q, self.query_tokens, self.lengths, self.block_table = kv, q, query_tokens, lengths, block_table
        self.in_order = in_order
        self.sequences, self.tokens, self.kv_heads, self.head_dim = kv.k.shape
        self.query_heads = q.shape[1]
        self.scale = self.head_dim ** -0.5
        self.ragged = min(lengths) != self.tokens
        self.lengths_device = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        self._made = {}

    def head_major(self):
        """k and v as [sequences, kv_heads, tokens, head_dim], each head's tokens together in memory."""
        return self._once("head major", lambda: tuple(part.transpose(1, 2).contiguous()
                                                      for part in (self.kv.k, self.kv.v)))

    def contiguous(self):
        """{layout in memory: k and v as [sequences, tokens, kv_heads, head_dim]}."""
        return {"head by head": tuple(part.transpose(1, 2) for part in self.head_major()),
                "token by token": (self.kv.k, self.kv.v)}

    def pages(self, size):
        """k and v as pages [pages, kv_heads, size, head_dim] and the table of page numbers [sequences, pages of a
        sequence]. Pages of 16 are numbered as GAAC's blocks."""
        return self._once(f"pages of {size}", lambda: self._paged(size))

    def _paged(self, size):
        if size == self.block_table_tokens():
            table = self.block_table
        else:
            count = self.sequences * (self.tokens // size)
            table = (torch.arange if self.in_order else torch.randperm)(count, device="cuda")
            table = table.view(self.sequences, -1).int()

        def paged(part):
            pages = part.view(-1, size, self.kv_heads, self.head_dim).transpose(1, 2)
            placed = torch.empty(pages.shape, dtype=part.dtype, device=part.device)
            placed[table.flatten().long()] = pages
            return placed
        return (*(paged(part) for part in (self.kv.k, self.kv.v)), table)

    def block_table_tokens(self):
        return self.tokens // self.block_table.shape[1]

    def _once(self, name, make):
        if name not in self._made:
            self._made[name] = make()
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


class Expanded(Problem):
    """The same for one sequence whose keys and values gaac_cuda_expand writes: what peers read, whatever they call it,
    is `parts`. layout: "head by head" or "token by token"."""

    def __init__(self, kv, q, lengths, block_table, layout):
        super().__init__(kv, q, 1, lengths, block_table, in_order=True)
        self.layout = layout
        both = (kv.k[0], kv.v[0])
        self.parts = tuple(part.transpose(0, 1).contiguous().transpose(0, 1) if layout == "head by head" else
                           part.clone() for part in both)  # [tokens, kv_heads, head_dim], of other strides

    def head_major(self):
        return tuple(part.transpose(0, 1)[None] for part in self.parts)

    def contiguous(self):
        return {self.layout: tuple(part[None] for part in self.parts)}

    def _paged(self, size):
        pages = (part.unflatten(0, (-1, size)).transpose(1, 2) for part in self.parts)
        return (*pages, torch.arange(self.tokens // size, device="cuda").int()[None])


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
    """FlashAttention 3 as vLLM ships it: a build for sequences of several lengths only, so `seqused_k` gives those of
    equal ones too. The scheduler's metadata is made ahead, as vLLM does once a step. settings: layouts in memory, and
    the most parts that a sequence may be split into, 0 for its own choice."""
    name = "FlashAttention 3 (vLLM)"
    SPLITS = (0, 2, 4, 8, 16, 32)

    def __init__(self, problem, peers):
        path = peers / "flash3.so"
        if not path.exists():
            raise Unavailable(f"{path} is missing: bench/cuda/get-peers.sh makes it")
        torch.ops.load_library(str(path))
        self.problem = problem
        self.causal = problem.query_tokens > 1
        self.prepare()
        self.variants = {}
        for layout, (k, v, table) in self.layouts().items():
            for splits in self.SPLITS:
                metadata = torch.ops._vllm_fa3_C.get_scheduler_metadata(
                    batch_size=problem.sequences, max_seqlen_q=problem.query_tokens, max_seqlen_k=problem.tokens,
                    num_heads=problem.query_heads, num_heads_k=problem.kv_heads, headdim=problem.head_dim,
                    headdim_v=problem.head_dim, qkv_dtype=torch.bfloat16, seqused_k=problem.lengths_device,
                    cu_seqlens_q=self.starts, cu_seqlens_k=None, cu_seqlens_k_new=None, seqused_q=None,
                    leftpad_k=None, page_size=None if table is None else k.shape[1], max_seqlen_k_new=0,
                    is_causal=self.causal, window_size_left=-1, window_size_right=-1, has_softcap=False,
                    num_splits=splits, pack_gqa=None, sm_margin=0)
                self.variants[f"{layout}, splits {splits}"] = (k, v, table, metadata, splits)
        self.settings = list(self.variants)
        self.setting = self.settings[0]

    def prepare(self):
        """Queries as [sequences, query_tokens, heads, head_dim]."""
        problem = self.problem
        self.q = problem.q.view(problem.sequences, problem.query_tokens, problem.query_heads, problem.head_dim)
        self.out = torch.empty_like(self.q)
        self.starts = None

    def layouts(self):
        """{layout: (k, v, page table or None)}."""
        return {layout: (k, v, None) for layout, (k, v) in self.problem.contiguous().items()}

    def run(self):
        k, v, table, metadata, splits = self.variants[self.setting]
        problem = self.problem
        torch.ops._vllm_fa3_C.fwd(
            q=self.q, k=k, v=v, k_new=None, v_new=None, q_v=None, out=self.out, cu_seqlens_q=self.starts,
            cu_seqlens_k=None, cu_seqlens_k_new=None, seqused_q=None, seqused_k=problem.lengths_device,
            max_seqlen_q=problem.query_tokens, max_seqlen_k=problem.tokens, page_table=table, kv_batch_idx=None,
            leftpad_k=None, rotary_cos=None, rotary_sin=None, seqlens_rotary=None, q_descale=None, k_descale=None,
            v_descale=None, softmax_scale=problem.scale, is_causal=self.causal, window_size_left=-1,
            window_size_right=-1, softcap=0.0, is_rotary_interleaved=True, scheduler_metadata=metadata,
            num_splits=splits, pack_gqa=None, sm_margin=0, s_aux=None, cp_world_size=1, cp_rank=0,
            cp_tot_seqused_k=None)

    def output(self):
        return self.out.view(self.problem.q.shape)


class Flash3Paged(Flash3):
    """The same as vLLM calls it: queries of all sequences in one tensor, keys and values in pages, of 16 tokens and
    larger ones, each head's tokens of a page together; of 16 also all heads of a token together, vLLM's default."""
    name = "FlashAttention 3 (vLLM), paged"
    PAGES = (16, 64, 256)

    def prepare(self):
        problem = self.problem
        self.q, self.out = problem.q, torch.empty_like(problem.q)
        self.starts = torch.arange(problem.sequences + 1, device="cuda").int() * problem.query_tokens

    def layouts(self):
        layouts = {}
        for size in self.PAGES:
            if self.problem.tokens % size == 0:
                k, v, table = self.problem.pages(size)
                layouts[f"pages of {size}"] = (k.transpose(1, 2), v.transpose(1, 2), table)
        k, v, table = layouts[f"pages of {self.PAGES[0]}"]
        if not isinstance(self.problem, Expanded):  # that has one layout
            layouts["pages of 16, token by token"] = (k.contiguous(), v.contiguous(), table)
        return layouts


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


# Whose keys and values lie in pages behind a table, as ours do.
PAGED = (Flash3Paged.name, FlashInfer.name, Xqa.name)
ATTENTION = {"cuDNN (torch SDPA)": cudnn, "FlashAttention 2 (torch SDPA)": flash2, Flash3.name: Flash3,
             Flash3Paged.name: Flash3Paged, FlashInfer.name: FlashInfer, Xqa.name: Xqa}

