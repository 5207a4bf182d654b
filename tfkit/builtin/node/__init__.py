"""Node kinds: tokens, patches, features, convolutions, stack, dense, token_logits, pool, classify, span_logits, similarity, layer_mix."""
