"""`tools/llama_perplexity.py`: our figures by its rule, and those that the document shows."""
