"""GGUF files: their metadata and tensors, their tokenizer, and the checkpoint they hold."""
