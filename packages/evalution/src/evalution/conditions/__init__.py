"""Under which conditions a result came about: engine, tokenizer, versions."""
