"""Node kinds: inputs (tokens, patches, features), stack, convolutions, dense, pool, heads such as token_logits and classify."""
