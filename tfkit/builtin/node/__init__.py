"""Node kinds: tokens, stack, dense, token_logits, pool, classify, layer_mix."""
