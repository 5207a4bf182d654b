"""A cache of keys and values for decoding, one growing tensor for a batch. This file does not import tfkit."""

import torch


class Draft:
    def __init__(self, *, batch, heads, kv_heads, head_dim, max_length, dtype, device="cpu"):
        self.held = torch.zeros(2, batch, kv_heads, max_length, head_dim, dtype=dtype, device=device)  # keys and values
        self.lengths = torch.zeros(batch, dtype=torch.long, device=device)

    def append(self, keys, values, lengths):
        for row, count in enumerate(lengths):
            start = self.lengths[row]
            self.held[0, row, :, start : start + count] = keys[row, :, :count]
            self.held[1, row, :, start : start + count] = values[row, :, :count]
        self.lengths = self.lengths + torch.tensor(lengths, device=self.lengths.device)

    def attend(self, query, scale):  # the last Q positions of every row
        Q, groups = query.shape[2], query.shape[1] // self.held.shape[2]
        keys, values = self.held.repeat_interleave(groups, 2).float()
        stands = self.lengths[:, None] - Q + torch.arange(Q, device=query.device)  # (B, Q)
        seen = torch.arange(keys.shape[2], device=query.device) <= stands[:, None, :, None]
        scores = (scale * query.float() @ keys.mT).masked_fill(~seen, float("-inf"))
        return (scores.softmax(-1).nan_to_num() @ values).to(query.dtype)

    def truncate(self, lengths):
        self.lengths = torch.tensor(lengths, device=self.lengths.device)

    def reorder(self, rows):
        self.held = self.held[:, rows]  # wrong: the lengths stay where they were


class Cache(Draft):
    def reorder(self, rows):
        self.held, self.lengths = self.held[:, rows], self.lengths[rows]
