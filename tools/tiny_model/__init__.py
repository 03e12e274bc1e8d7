"""The tiny trained Llama of `evalution-reference`: its text, tokenizer, training and files."""
