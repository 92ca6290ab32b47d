"""One layer's GAAC cache in torch's device memory, over binding.py.

K and V are BF16 tensors [..., tokens, kv_heads, head_dim] whose last dimension is contiguous; everything is on the
current device and stream.
"""
import binding
import torch

COUNTERS = [name for name, _ in binding.Counters._fields_]
TRIAL_POOL = 16384  # large enough for any block that can be coded with 8 heads of 256


def stream():
    return torch.cuda.current_stream().cuda_stream


def rows_of(k, v):
    """Rows of tensors [tokens, kv_heads, head_dim]."""
    for tensor in (k, v):
        if tensor.dim() != 3 or tensor.stride(2) != 1 or tensor.element_size() != 2:
            raise ValueError("rows are 16-bit tensors [tokens, kv_heads, head_dim], contiguous in head_dim")
    return binding.Rows(k.data_ptr(), v.data_ptr(), k.stride(0), k.stride(1), v.stride(0), v.stride(1))


class Windows:
    """Exponent windows of one epoch, chosen on the device from rows [tokens, kv_heads, head_dim]."""

    def __init__(self, library, shape, k, v):
        sizes = library.sizes(shape, 0)
        counts = torch.zeros(sizes.histogram_counts, dtype=torch.int32, device=k.device)
        table = torch.empty(sizes.window_table_bytes, dtype=torch.uint8, device=k.device)
        self.words = torch.empty(sizes.window_bytes, dtype=torch.uint8, device=k.device)
        library.histogram_add(shape, rows_of(k, v), k.shape[0], counts.data_ptr(), stream())
        library.choose_windows(shape, counts.data_ptr(), 0.0, table.data_ptr(), stream())
        library.set_windows(shape, table.data_ptr(), self.words.data_ptr(), stream())
        torch.cuda.synchronize()


class DeviceCache:
    """A cache of `blocks` physical blocks. slots: another cache's, for a cache whose blocks all stay raw."""

    def __init__(self, library, shape, windows, pool_bytes, blocks, raw_blocks, slots=None):
        self.library, self.shape, self.pool_bytes, self.blocks = library, shape, pool_bytes, blocks
        self.windows = windows
        self.sizes = library.sizes(shape, pool_bytes)
        device = windows.words.device
        self.slots = slots if slots is not None else torch.empty(
            blocks * self.sizes.slot_bytes, dtype=torch.uint8, device=device)
        self.entries = torch.zeros(blocks, self.sizes.entries_per_block, dtype=torch.int32, device=device)
        self.raw = torch.empty(raw_blocks * self.sizes.raw_bytes, dtype=torch.uint8, device=device)
        self.raw_used = torch.zeros((raw_blocks + 31) // 32, dtype=torch.int32, device=device)
        self.counts = torch.zeros(len(COUNTERS), dtype=torch.int64, device=device)
        self.struct = binding.Cache(
            shape=shape, pool_bytes=pool_bytes, blocks=blocks, slots=self.slots.data_ptr(),
            slot_stride=self.sizes.slot_bytes, entries=self.entries.data_ptr(),
            entry_stride=self.sizes.entries_per_block, raw=self.raw.data_ptr(), raw_used=self.raw_used.data_ptr(),
            raw_blocks=raw_blocks, epochs=1, windows=windows.words.data_ptr(), counters=self.counts.data_ptr())

    def counters(self):
        return dict(zip(COUNTERS, self.counts.tolist()))

    def encode_call(self, k, v, offsets, blocks, keep_raw=False):
        """A call without arguments that encodes `blocks` [count] from rows k and v; block i's first token is row
        offsets[i]."""
        starts = [(offsets * tensor.stride(0)).to(torch.int64).contiguous() for tensor in (k, v)]
        blocks = blocks.to(torch.int32).contiguous()
        arguments = binding.EncodeArgs(rows=rows_of(k, v), k_offsets=starts[0].data_ptr(),
                                       v_offsets=starts[1].data_ptr(), blocks=blocks.data_ptr(),
                                       count=blocks.numel(), epoch=0, keep_raw=keep_raw)
        return self._call(self.library.encode, arguments, k, v, starts, blocks)

    def append_call(self, k, v, lengths, block_table, query_start=None, keep_raw=False):
        arguments = binding.AppendArgs(
            rows=rows_of(k, v), sequences=lengths.numel(), tokens=k.shape[0],
            query_start=query_start.data_ptr() if query_start is not None else None, lengths=lengths.data_ptr(),
            block_table=block_table.data_ptr(), block_table_stride=block_table.stride(0), epoch=0, keep_raw=keep_raw)
        return self._call(self.library.append, arguments, k, v, lengths, block_table, query_start)

    def decode_call(self, k, v, offsets, blocks):
        """Like encode_call, the other way."""
        starts = [(offsets * tensor.stride(0)).to(torch.int64).contiguous() for tensor in (k, v)]
        blocks = blocks.to(torch.int32).contiguous()
        arguments = binding.DecodeArgs(rows=rows_of(k, v), k_offsets=starts[0].data_ptr(),
                                       v_offsets=starts[1].data_ptr(), blocks=blocks.data_ptr(), count=blocks.numel())
        return self._call(self.library.decode, arguments, k, v, starts, blocks)

    def expand_call(self, k, v, lengths, row_start, block_table, max_tokens):
        arguments = binding.ExpandArgs(
            rows=rows_of(k, v), sequences=lengths.numel(), max_tokens=max_tokens, first=None,
            lengths=lengths.data_ptr(), row_start=row_start.data_ptr(), block_table=block_table.data_ptr(),
            block_table_stride=block_table.stride(0))
        return self._call(self.library.expand, arguments, k, v, lengths, row_start, block_table)

    def _call(self, function, arguments, *kept):
        """kept: what must live as long as the call can be made."""
        struct = self.struct

        def call():
            assert kept is not None
            function(struct, arguments, stream())
        return call

    def bytes_to_read(self, blocks):
        """Bytes of the tiles and entries of `blocks` that attention reads, and how many of the blocks are raw."""
        entries = self.entries[blocks.long()]
        raw = entries[:, 0] < 0
        lengths = ((entries >> 12) & 0xff) * 16
        fixed = self.sizes.slot_bytes - self.pool_bytes
        coded = int((~raw).sum()) * fixed + int(lengths[~raw].sum())
        return coded + int(raw.sum()) * self.sizes.raw_bytes + entries.numel() * 4, int(raw.sum())

    def sort_raw_blocks(self):
        """Of a cache whose blocks are all raw: raw block i becomes physical block i's. The library takes raw blocks
        from anywhere, so that those of a sequence lie in random order whatever its block table is."""
        places = (self.entries[:, 0] & 0x7fffffff).long()
        if not bool((self.entries < 0).all()) or places.unique().numel() != self.blocks:
            raise RuntimeError("not every block is raw in a place of its own")
        raw = self.raw.view(torch.int64).view(-1, self.sizes.raw_bytes // 8)
        raw[:self.blocks] = raw[places]  # the right side is a copy
        self.entries[:] = (torch.arange(self.blocks, device=raw.device) - (1 << 31)).int()[:, None]
        used = torch.arange(self.raw_used.numel() * 32, device=raw.device).view(-1, 32) < self.blocks
        weights = torch.arange(32, device=raw.device)
        words = (used.long() << weights).sum(dim=1)
        self.raw_used.copy_(torch.where(words >= 1 << 31, words - (1 << 32), words).int())

    def resident_bytes(self):
        """Slots, entries and the raw blocks in use."""
        words = self.raw_used.to(torch.int64) & 0xffffffff
        used = sum(int(((words >> bit) & 1).sum()) for bit in range(32))
        return self.blocks * (self.sizes.slot_bytes + 4 * self.sizes.entries_per_block) + used * self.sizes.raw_bytes


def choose_pool(library, shape, windows, k, v):
    """The pool's capacity: of the multiples of 128 that leave at most 1% of the sample's blocks raw, the one with the
    fewest expected bytes. k, v: rows that the windows were not chosen on, or a sample of all."""
    count = min(k.shape[0] // binding.BLOCK_TOKENS, 2048)
    trial = DeviceCache(library, shape, windows, TRIAL_POOL, count, count)
    blocks = torch.arange(count, device=k.device)
    trial.encode_call(k, v, blocks * binding.BLOCK_TOKENS, blocks)()
    torch.cuda.synchronize()
    raw = trial.entries[:, 0] < 0
    needed = (((trial.entries >> 12) & 0xff) * 16).sum(dim=1)
    needed = torch.where(raw, torch.full_like(needed, 1 << 30), needed)
    fixed = trial.sizes.slot_bytes - TRIAL_POOL
    best, best_bytes = None, float("inf")
    for capacity in range(128, TRIAL_POOL + 1, 128):
        over = float((needed > capacity).float().mean())
        expected = (1 - over) * (fixed + capacity) + over * trial.sizes.raw_bytes
        if over <= 0.01 and expected < best_bytes:
            best, best_bytes = capacity, expected
    if best is None:
        raise RuntimeError(f"no pool up to {TRIAL_POOL} bytes leaves at most 1% of {count} blocks raw: "
                           f"{int(raw.sum())} of them cannot be coded")
    return best


class Attention:
    """gaac_cuda_attention over one cache: q [rows, query_heads, head_dim], `query_tokens` rows a sequence."""

    def __init__(self, cache, q, out, lengths, block_table, query_tokens, lse=None):
        self.cache, self.kept = cache, (q, out, lengths, block_table, lse)
        self.out = out
        plan = binding.PlanArgs(shape=cache.shape, query_heads=q.shape[1], sequences=lengths.numel(),
                                query_tokens=query_tokens, query_start=None, lengths=lengths.data_ptr(), window=0)
        self.workspace = torch.empty(max(cache.library.plan_bytes(plan), 256), dtype=torch.uint8, device=q.device)
        self.arguments = binding.AttentionArgs(
            plan=plan, workspace=self.workspace.data_ptr(), block_table=block_table.data_ptr(),
            block_table_stride=block_table.stride(0), q=q.data_ptr(), q_token_stride=q.stride(0),
            q_head_stride=q.stride(1), out=out.data_ptr(), out_token_stride=out.stride(0),
            out_head_stride=out.stride(1), out_type=binding.F32 if out.dtype == torch.float32 else binding.BF16,
            lse=lse.data_ptr() if lse is not None else None, scale=cache.shape.head_dim_k ** -0.5)
        self.plan()

    def plan(self):
        self.cache.library.plan(self.arguments.plan, self.workspace.data_ptr(), stream())

    def __call__(self):
        self.cache.library.attention(self.cache.struct, self.arguments, stream())

    def reference(self):
        self.cache.library.attention_reference(self.cache.struct, self.arguments, stream())
