"""Node kinds: tokens, patches, features, convolutions, stack, dense, token_logits, pool, classify, similarity, layer_mix."""
